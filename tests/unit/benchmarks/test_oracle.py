"""The oracle's recordings, as they are committed: what they cover, that each is sane, and how a line reads."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from nooom.benchmarks.devices import choose
from nooom.benchmarks.models.zoo import names
from nooom.benchmarks.oracle import FIGURES, MADE_WITH, SUITES, Recording, gpu_of, load, written
from nooom.benchmarks.runner import plan
from nooom.benchmarks.shipped import RESULTS
from nooom.benchmarks.suites.suite import load_suite
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement, Phase

FOLDERS = sorted(path.parent for path in (RESULTS / "emulated").glob(f"*/{MADE_WITH}"))
PHASES = {
    "inference": ("load", "prefill", "decode"),
    "sft": ("load", "forward", "backward", "optimizer"),
    "lora": ("load", "forward", "backward", "optimizer"),
    "grpo": ("load", "rollout", "reference", "update"),
}


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def recordings(folder: Path) -> list[Recording]:
    return load(folder)


def test_there_are_recordings() -> None:
    assert FOLDERS


def test_the_grid_has_every_workload_flag_and_gpu(recordings: list[Recording]) -> None:
    assert len(recordings) >= 200
    cases = [item.case for item in recordings]
    by_workload = Counter(case.workload for case in cases)
    assert min(by_workload[name] for name in PHASES) >= 20, by_workload
    assert len({case.model for case in cases} & set(names())) >= 10
    assert {item.gpu.split("@")[0] for item in recordings} >= {"a100-80gb", "h100-80gb", "rtx4090-24gb"}
    assert {case.optimizer for case in cases} >= {"adamw", "adamw-foreach", "sgd", "sgd-momentum", "adafactor"}
    assert {case.attention for case in cases} >= {"sdpa", "eager", "sdpa-math", "sdpa-efficient", "sdpa-flash"}
    assert {case.dtype for case in cases} == {"bf16", "fp16", "fp32"}
    assert {case.autocast for case in cases} >= {"none", "bf16", "fp16"}
    assert {case.reference for case in cases} >= {"none", "shared", "separate"}
    assert {case.logits for case in cases} >= {"all", "last"}
    assert {case.decoding for case in cases} >= {"greedy", "sampled"}
    assert {case.lora_dtype for case in cases} >= {"fp32", "bf16"}
    assert {case.checkpointing for case in cases} >= {True, False}
    for some in ("padding", "grad_accumulation", "lora_dropout", "full", "new_tokens"):
        assert len({getattr(case, some) for case in cases} - {None}) >= 2, some
    assert sum(case.allocator == "expandable_segments:True" for case in cases) >= 20
    assert {item.case.attention for item in recordings if item.gpu == "h100-80gb"} == {"sdpa-flash"}


def test_memory_runs_out_in_every_phase(recordings: list[Recording]) -> None:
    where = Counter(item.oom_phase for item in recordings if item.status == "oom")
    assert set(where) == {name for phases in PHASES.values() for name in phases}


def test_every_figure_is_sane(recordings: list[Recording]) -> None:
    for item in recordings:
        total = gpu_of(item.gpu).total_bytes
        for name, figures in [*item.phases.items(), *item.first.items()]:
            assert name in PHASES[item.case.workload]
            peak, active, reserved, requested, end = (figures[figure] for figure in FIGURES)
            assert 0 < requested <= peak <= active <= reserved <= total, (item.case.label(), name)
            assert 0 < end <= peak
        if item.status == "ok":
            assert list(item.phases) == [name for name in PHASES[item.case.workload] if name in item.phases]
            assert set(item.first) == set(item.phases) - {"load"}
            assert item.oom_phase is None
        else:
            assert item.status == "oom"
            assert item.oom_phase in PHASES[item.case.workload]
            assert item.retries is None or item.retries >= 1 or item.oom_phase not in item.phases


def test_the_files_are_sorted_and_have_no_case_twice(folder: Path) -> None:
    for file in folder.glob("*.jsonl"):
        lines = file.read_text(encoding="utf-8").splitlines()
        assert lines == sorted(set(lines))
        ids = [Case.from_dict(json.loads(line)["case"]).case_id() for line in lines]
        assert len(ids) == len(set(ids))


def test_they_are_of_the_suites_and_the_gpus_that_are_here(folder: Path) -> None:
    """Where this fails: make oracle."""
    made_with = json.loads((folder / MADE_WITH).read_text(encoding="utf-8"))
    assert tuple(made_with["figures"]) == FIGURES
    assert sorted(made_with["gpus"]) == sorted(path.stem for path in SUITES.glob("*.toml"))
    for stem, played in made_with["gpus"].items():
        gpu = gpu_of(stem)
        assert played == {
            "total_bytes": gpu.total_bytes,
            "context_bytes": gpu.context_bytes,
            "compute_capability": ".".join(map(str, gpu.compute_capability)),
            "sms": gpu.sms,
            "max_threads_per_sm": gpu.max_threads_per_sm,
        }
        planned = plan(load_suite(str(SUITES / f"{stem}.toml"), "phantom").cases, choose("phantom", gpu))
        recorded = {item.case.case_id() for item in load(folder) if item.gpu == stem}
        assert recorded == {item.case_id for item in planned}


def test_a_line_says_what_differs_and_reads_back() -> None:
    case = Case(model="m", workload="grpo", full=True, batch=16, micro_batch=2, seq=64, allocator="backend:native")
    phases = [_phase("load", 10), _phase("rollout", 30), _phase("update", 50)]
    first = {"phases": [vars(_phase("rollout", 30)), vars(_phase("update", 40))]}
    record = Measurement(
        case_id="", case=case.to_dict(), source="emulated", device="phantom", status="ok", phases=phases, first=first, retries=0
    )  # fmt: skip
    line = written(record)
    assert json.loads(line) == {
        "case": {"model": "m", "workload": "grpo", "batch": 16, "full": True, "group_size": 8, "micro_batch": 2, "seq": 64,
                 "allocator": "backend:native"},
        "status": "ok",
        "phases": {"load": [10, 11, 12, 9, 8], "rollout": [30, 31, 32, 29, 28], "update": [50, 51, 52, 49, 48]},
        "first": {"update": [40, 41, 42, 39, 38]},
    }  # fmt: skip
    item = _read(line)
    assert item.case == case
    assert item.first["rollout"] == item.phases["rollout"]
    assert item.first["update"]["peak_allocated_bytes"] == 40


def test_where_memory_ran_out_is_said() -> None:
    record = Measurement(
        case_id="", case=Case(model="m", workload="inference").to_dict(), source="emulated", device="phantom", status="oom",
        error={"kind": "cuda", "phase": "load", "tried_bytes": 1 << 20},
    )  # fmt: skip
    item = _read(written(record))
    assert (item.status, item.oom_phase, item.retries, item.phases) == ("oom", "load", None, {})


def test_a_line_that_is_none_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a100-80gb.jsonl").write_text('{"case": {"model": "m"}}\n')
    with pytest.raises(UsageError, match=r"a100-80gb.jsonl:1: no recording"):
        load(tmp_path)


def _phase(name: str, peak: int) -> Phase:
    return Phase(
        name=name, peak_allocated_bytes=peak, peak_active_bytes=peak + 1, peak_reserved_bytes=peak + 2,
        peak_requested_bytes=peak - 1, end_allocated_bytes=peak - 2,
    )  # fmt: skip


def _read(line: str) -> Recording:
    from nooom.benchmarks.oracle import recording

    return recording("a100-80gb", json.loads(line))
