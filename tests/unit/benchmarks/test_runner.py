"""The runner's own decisions, with children that answer at once: budgets, what is prepared, several GPUs."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import devices, runner, several
from nooom.formulas.case import Case
from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.formulas.gpus import GPUS
from nooom.profiler.child import Outcome

SMOL = "HuggingFaceTB/SmolLM2-135M"


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What children answer, and the jobs and environments that they were given."""
    told: dict[str, Any] = {
        "with": lambda job, timeout_s: Outcome(status="ok"),
        "jobs": [],
        "environments": [],
        "forks": True,
    }

    class Children:
        def __init__(self, preload: list[str], environment: Mapping[str, str], **_: Any) -> None:
            self.environment = environment

        def run(self, job: dict[str, Any], *, timeout_s: float, on_phase: Callable[[str], None]) -> Outcome:
            told["jobs"].append(job)
            told["environments"].append(self.environment)
            return told["with"](job, timeout_s)

        def stop_forking(self) -> bool:
            forked, told["forks"] = told["forks"], False
            return forked

        def close(self) -> None: ...

    monkeypatch.setattr(runner, "Children", Children)
    return told


def plan(*seqs: int, device: devices.Device = devices.CUDA, **flags: Any) -> list[runner.Planned]:
    cases = [Case.from_dict({"model": SMOL, "workload": "sft", "seq": seq, **flags}) for seq in seqs]
    return runner.plan(cases, device, write_checkpoints=True)


def ran(planned: list[runner.Planned], **options: Any) -> list[int]:
    return [record.case["seq"] for record in runner.run(planned, devices.CUDA, runner.Options(**options))]


def test_a_case_that_would_not_be_over_in_time_is_not_started_and_a_shorter_one_is(answer: dict[str, Any]) -> None:
    options = {"deadline": time.monotonic() + 100, "estimate": lambda item: item.case.seq}
    assert ran(plan(1000, 50, 99, 2000), **options) == [50, 99]
    assert ran(plan(1, 2), deadline=time.monotonic() - 1) == []


def test_a_case_that_the_budget_ends_is_left_and_one_that_its_own_limit_ends_has_failed(answer: dict[str, Any]) -> None:
    limits = []

    def slow(job: dict[str, Any], timeout_s: float) -> Outcome:
        limits.append(timeout_s)
        time.sleep(timeout_s)
        return Outcome(status="timeout", message="did not finish")

    answer["with"] = slow
    assert ran(plan(8, 16), timeout_s=0.2, deadline=time.monotonic() + 60) == [8, 16]
    assert ran(plan(8, 16), timeout_s=60, deadline=time.monotonic() + 0.3) == []
    assert limits[:2] == [0.2, 0.2]
    assert limits[2] <= 0.3
    assert len(limits) == 3  # the second wasn't started


def test_a_record_says_how_long_its_case_took(answer: dict[str, Any]) -> None:
    (record,) = runner.run(plan(8), devices.CUDA, runner.Options())
    assert record.fingerprint["wall_s"] >= 0
    assert "gpu_index" not in record.fingerprint


def test_what_can_not_be_prepared_is_a_crashed_case_and_the_others_go_on(
    answer: dict[str, Any], tmp_path: Path
) -> None:
    def prepare(item: runner.Planned) -> runner.Planned:
        if item.case.pretrained:
            raise CannotMeasureError("no checkpoint: no space left on device")
        return dataclasses.replace(item, model=dataclasses.replace(item.model, directory=tmp_path))

    planned = plan(8, pretrained=True) + plan(16)
    first, second = runner.run(planned, devices.CUDA, runner.Options(prepare=prepare))
    assert (first.status, (first.error or {})["message"]) == ("crashed", "no checkpoint: no space left on device")
    assert second.status == "ok"
    assert [job["arguments"]["directory"] for job in answer["jobs"]] == [str(tmp_path)]


def test_a_checkpoint_that_the_run_writes_has_random_weights_and_is_another_case(answer: dict[str, Any]) -> None:
    (item,) = plan(8, pretrained=True)
    (record,) = runner.run([item], devices.CUDA, runner.Options())
    assert runner.is_written_first(item)
    assert (record.weights, record.case["pretrained"]) == ("random", True)
    assert item.case_id != plan(8)[0].case_id
    with pytest.raises(UsageError, match="a zoo name, which is a config alone"):
        runner.plan([item.case], devices.CUDA)


def test_cases_get_new_interpreters_where_something_that_is_imported_uses_cuda(answer: dict[str, Any]) -> None:
    """torch refuses CUDA in a forked process then: the first case says so, and every other one is started anew."""
    forked = Outcome(status="crashed", message="uses CUDA", answer={"error": {"kind": "ForkedError"}})
    answer["with"] = lambda job, timeout_s: forked if answer["forks"] else Outcome(status="ok")
    assert ran(plan(8, 16)) == [8, 16]
    assert len(answer["jobs"]) == 3
    answer["with"] = lambda job, timeout_s: forked
    with pytest.raises(CannotMeasureError, match="uses CUDA"):
        ran(plan(8))


def test_each_gpu_takes_the_next_case_and_the_record_says_which(answer: dict[str, Any]) -> None:
    together = threading.Barrier(2, timeout=10)

    def both(job: dict[str, Any], timeout_s: float) -> Outcome:
        together.wait()  # passes only where two cases run at the same time
        return Outcome(status="ok")

    answer["with"] = both
    two = [dataclasses.replace(devices.CUDA, index=index, visible=f"GPU-{index}") for index in range(2)]
    records = list(several.run(plan(8, 16, 32, 64), two, runner.Options()))
    assert sorted(record.case["seq"] for record in records) == [8, 16, 32, 64]
    assert sorted(record.fingerprint["gpu_index"] for record in records) == [0, 0, 1, 1]
    assert {environment["CUDA_VISIBLE_DEVICES"] for environment in answer["environments"]} == {"GPU-0", "GPU-1"}


def test_a_busy_gpu_is_given_up_and_the_others_go_on(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(items: Any, device: devices.Device, options: runner.Options) -> Any:
        for item in items:
            if device.index == 1:
                raise CannotMeasureError("the GPU is busy")
            time.sleep(0.05)
            yield item.case.seq

    monkeypatch.setattr(runner, "run", run)
    two = [dataclasses.replace(devices.CUDA, index=index) for index in range(2)]
    seen: list[Any] = []
    with pytest.raises(CannotMeasureError, match="busy"):
        seen.extend(several.run(plan(8, 16, 32, 64), two, runner.Options()))
    assert len(seen) == 3  # all but the one that the busy GPU took


def test_a_device_is_spread_over_the_gpus_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nooom.profiler.hardware.visible_gpus", lambda: ["GPU-a", "GPU-b", "GPU-c"])
    phantom = devices.choose("phantom", GPUS["h100-80gb"])
    assert devices.spread(devices.CUDA, None) == [devices.CUDA]
    assert [one.visible for one in devices.spread(devices.CUDA, "all")] == ["GPU-a", "GPU-b", "GPU-c"]
    assert [(one.index, one.visible) for one in devices.spread(phantom, "2")] == [(0, "0"), (1, "1")]
    for device, gpus, says in [
        (devices.CUDA, "4", "from 1 to 3, not '4'"),
        (devices.CUDA, "0", "from 1 to 3"),
        (devices.CUDA, "some", "must be all or a number"),
        (phantom, "all", "has as many as it is told"),
        (devices.CPU, "2", "for cuda and phantom"),
    ]:
        with pytest.raises(UsageError, match=says):
            devices.spread(device, gpus)


def test_a_dry_run_is_told_its_gpu_and_allocator_and_needs_one_pass(answer: dict[str, Any]) -> None:
    gpu = dataclasses.replace(GPUS["a100-80gb"], total_bytes=9 << 30)
    device = devices.choose("dryrun", gpu)
    planned = [
        *plan(8, device=device),
        *plan(8, device=device, allocator="expandable_segments:True"),
    ]
    records = list(runner.run(planned, device, runner.Options(attribute=True)))
    assert [record.source for record in records] == ["dryrun", "dryrun"]
    told = [job["instrument_options"] for job in answer["jobs"]]
    assert [(one["gpu"], one["total_bytes"], one["capped"]) for one in told] == [("a100-80gb", 9 << 30, True)] * 2
    assert [one["allocator"] for one in told] == ["", "expandable_segments:True"]
    # A simulated allocator has no use for the environment, and a GPU that is there none for the simulation.
    assert all("PYTORCH_ALLOC_CONF" not in environment for environment in answer["environments"])
    assert all(environment["CUDA_VISIBLE_DEVICES"] == "" for environment in answer["environments"])


def test_other_instruments_are_told_nothing(answer: dict[str, Any]) -> None:
    ran(plan(8))
    assert [job["instrument_options"] for job in answer["jobs"]] == [{}]
