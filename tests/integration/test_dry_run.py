"""``--device dryrun`` and ``--by dryrun`` as a user types them: records, predictions, what does not fit, the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.gpus import GPUS
from nooom.profiler.measurement import Measurement

SMOL = "HuggingFaceTB/SmolLM2-135M"
CASE = ["--model", SMOL, "--workload", "lora", "--batch", 1, "--seq", 64, "--steps", 1]
ON = ["--gpu", "a100-80gb"]
LITTLE = [*ON, "--gpu-memory", "900MiB"]
"""388 MiB without the context: enough for the weights, and not for a step."""


def document(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dry")


@pytest.fixture(scope="module")
def ran(folder: Path, nooom_in: Any) -> dict[str, Any]:
    """The case's record, kept in ``out``."""
    (record,) = document(nooom_in(folder, "run", *CASE, "--device", "dryrun", *ON, "--out", "out", "--json"))[
        "measurements"
    ]
    return dict(record)


@pytest.fixture(scope="module")
def predicted(folder: Path, nooom_in: Any) -> dict[str, Any]:
    return document(nooom_in(folder, "predict", *CASE, *ON, "--by", "article,dryrun", "--json"))


def test_the_record_is_a_dry_runs_and_says_what_each_byte_is(ran: dict[str, Any]) -> None:
    record = Measurement.from_json(ran)
    assert (record.source, record.device, record.status, record.retries) == ("dryrun", "dryrun", "ok", 0)
    gpu = GPUS["a100-80gb"]
    assert record.gpu == {"name": gpu.device_name, "total_bytes": gpu.total_bytes}
    assert [phase.name for phase in record.phases] == ["load", "forward", "backward", "optimizer"]
    for phase in record.phases:
        assert phase.components is not None
        assert sum(phase.components.values()) == phase.peak_allocated_bytes
        assert (phase.peak_op or "").startswith("aten.")
        assert phase.peak_reserved_bytes is not None
        assert phase.peak_reserved_bytes >= (phase.peak_allocated_bytes or 0)
        assert phase.nvml_peak_bytes is None


def test_it_is_not_run_again_and_no_table_calls_it_measured(ran: dict[str, Any], folder: Path, nooom_in: Any) -> None:
    done = nooom_in(folder, "run", *CASE, "--device", "dryrun", *ON, "--out", "out", "--resume", "--attribute")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 cases were finished before" in done.stderr
    assert "(dryrun)" in done.stdout
    assert "measured" not in done.stdout
    assert "The largest tensors at the peak of backward" in done.stdout
    refused = nooom_in(folder, "validate", "out")
    assert refused.returncode == 2
    assert "nothing but dry runs, which are predictions" in refused.stderr


def test_the_gate_holds_it_against_itself_to_the_byte(ran: dict[str, Any], folder: Path, nooom_in: Any) -> None:
    done = nooom_in(folder, "check", "--baseline", "out", "--device", "dryrun", *ON, "--out", "check", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {(row["state"], row["change_bytes"], row["band_bytes"], row["evidence"]) for row in rows} == {
        ("pass", 0, 0, "dryrun")
    }


def test_the_prediction_is_the_same_run_with_room_enough(ran: dict[str, Any], predicted: dict[str, Any]) -> None:
    article, said = predicted["predictions"]
    assert (article["source"], said["source"], article["tensors"]) == ("article", "dryrun", None)
    peak = max(ran["phases"], key=lambda phase: phase["peak_allocated_bytes"])
    assert (said["allocated_bytes"], said["peak_phase"]) == (peak["peak_allocated_bytes"], peak["name"])
    assert said["peak_op"] == peak["peak_op"]
    assert said["reserved_bytes"] == max(phase["peak_reserved_bytes"] for phase in ran["phases"])
    assert said["device_bytes"] == said["reserved_bytes"] + predicted["gpu"]["context_bytes"]
    assert sum(said["components"].values()) == said["allocated_bytes"]
    assert len(said["tensors"]) == 10
    assert {"shape", "dtype", "module", "op", "bytes"} <= set(said["tensors"][0])
    assert (said["fits"], said["oom"]) == (True, None)
    assert said["headroom_bytes"] == predicted["gpu"]["usable_bytes"] - said["allocated_bytes"]


def test_what_does_not_fit_is_a_prediction_with_the_request_that_fails(
    predicted: dict[str, Any], folder: Path, nooom_in: Any
) -> None:
    found = document(nooom_in(folder, "predict", *CASE, *LITTLE, "--by", "dryrun", "--json"))
    (said,) = found["predictions"]
    # The figures are those of a GPU with room enough; that it does not fit is said beside them.
    for figure in ("allocated_bytes", "reserved_bytes", "components", "peak_op"):
        assert said[figure] == predicted["predictions"][1][figure]
    assert said["reserved_bytes"] > found["gpu"]["usable_bytes"]
    assert said["fits"] is False
    assert said["headroom_bytes"] < 0
    assert said["oom"]["phase"] in ("forward", "backward", "optimizer")
    assert said["oom"]["op"].startswith("aten.")
    assert said["oom"]["tried_bytes"] > 0


def test_a_run_that_does_not_fit_ends_as_oom(folder: Path, nooom_in: Any) -> None:
    (record,) = document(nooom_in(folder, "run", *CASE, "--device", "dryrun", *LITTLE, "--out", "oom", "--json"))[
        "measurements"
    ]
    assert record["status"] == "oom"
    error = record["error"]
    assert (error["kind"], error["capacity_bytes"]) == ("cuda", 900 << 20)
    assert error["phase"] in ("forward", "backward", "optimizer")
    assert error["op"].startswith("aten.")
    assert "CUDA out of memory. Tried to allocate" in error["message"]
    assert error["components"]["parameters"] > 256 << 20
    Measurement.from_json(record)


def test_the_table_has_the_largest_tensors(folder: Path, nooom_in: Any) -> None:
    done = nooom_in(folder, "predict", *CASE, *ON, "--by", "dryrun", env={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    assert "dryrun: the largest tensors at the peak of backward, made by aten." in done.stdout
    assert "max_memory_reserved" in done.stdout
    assert f"bfloat16 {[49152, 576]}" in done.stdout
