"""What the oracle took apart, as it is committed: complete, adding up, and as the page that shows it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nooom.benchmarks import components, hidden_allocations
from nooom.benchmarks.components import Apart, Scratch
from nooom.benchmarks.oracle import MADE_WITH, load
from nooom.benchmarks.shipped import RESULTS
from nooom.formulas.errors import UsageError

FOLDER = max(path.parent for path in (RESULTS / "emulated").glob(f"*/{MADE_WITH}"))


@pytest.fixture(scope="module")
def taken() -> tuple[list[Apart], list[Scratch]]:
    return components.load(FOLDER)


def test_one_case_in_four_is_taken_apart_over_all_workloads_and_models(
    taken: tuple[list[Apart], list[Scratch]],
) -> None:
    recordings = [item for item in load(FOLDER) if item.status == "ok"]
    cases = {(item.gpu, item.case) for item in taken[0]}
    assert len(cases) * 4 >= len(recordings)
    assert len({case.model for _, case in cases}) >= 10
    for workload in ("inference", "sft", "lora", "grpo"):
        assert len({case.model for _, case in cases if case.workload == workload}) >= 5


def test_every_peak_is_the_recordings_and_nearly_all_of_it_has_a_name(taken: tuple[list[Apart], list[Scratch]]) -> None:
    recorded = {
        (item.gpu, item.case, name): figures["peak_allocated_bytes"]
        for item in load(FOLDER)
        for name, figures in item.phases.items()
    }
    for item in taken[0]:
        assert recorded[item.gpu, item.case, item.phase] == item.measured_bytes
        assert item.unknown_bytes <= 0.005 * item.peak_bytes, (item.case.label(), item.phase, item.hidden)
        assert abs(item.peak_bytes - item.measured_bytes) <= 0.001 * item.measured_bytes, item.case.label()
        assert sum(block["bytes"] * block["count"] for block in item.hidden) == item.components["workspace"]


def test_what_kernels_take_is_what_the_rules_say(taken: tuple[list[Apart], list[Scratch]]) -> None:
    judged = [(call, sizes) for call in taken[1] if (sizes := hidden_allocations.expected(call)) is not None]
    assert {call.op.split(".")[1] for call, _ in judged} >= {"mm", "_foreach_norm", "embedding_dense_backward", "sum"}
    missed = [(call.op, call.case.label()) for call, sizes in judged if not hidden_allocations.is_met(call, sizes)]
    assert not missed


def test_the_page_is_what_the_command_writes() -> None:
    assert (RESULTS / hidden_allocations.FILE).read_text(encoding="utf-8") == hidden_allocations.document(RESULTS)


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"case": {}, "phases": {}, "scratch": []}'])
def test_a_line_that_is_none_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / components.FOLDER).mkdir()
    (tmp_path / components.FOLDER / "a100-80gb.jsonl").write_text(f"{line}\n")
    with pytest.raises(UsageError, match=r"a100-80gb.jsonl:1: no case"):
        components.load(tmp_path)


def test_components_that_are_too_few_are_refused(tmp_path: Path) -> None:
    case = {"model": "Qwen/Qwen2.5-0.5B", "workload": "sft"}
    line = {"case": case, "phases": {"load": {"components": [1], "measured": 1, "hidden": []}}, "scratch": []}
    (tmp_path / components.FOLDER).mkdir()
    (tmp_path / components.FOLDER / "a100-80gb.jsonl").write_text(json.dumps(line))
    with pytest.raises(UsageError, match="no case that was taken apart"):
        components.load(tmp_path)
