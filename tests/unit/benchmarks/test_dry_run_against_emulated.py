"""The dry runs that ship: their page is what they say, and run anew they are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nooom.benchmarks import devices, oracle, runner
from nooom.benchmarks import dry_run_against_emulated as against
from nooom.benchmarks.runner import LIBRARIES
from nooom.formulas.case import Case
from nooom.profiler.fingerprint import fingerprint

RESULTS = Path(__file__).resolve().parents[3] / "results"
LINES = RESULTS / against.FOLDER / against.LINES


def _lines() -> list[dict[str, object]]:
    return [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]


def test_the_page_is_what_the_lines_say() -> None:
    assert (RESULTS / against.FOLDER / against.PAGE).read_text(encoding="utf-8") == against.page(RESULTS)


def test_most_phases_are_the_phantoms_to_the_byte() -> None:
    found = list(against.pairs(RESULTS))
    same = sum(pair.allocated[0] == pair.allocated[1] for pair in found)
    assert len(found) > 100
    assert same > len(found) / 2
    assert max(abs(pair.error) for pair in found) < 0.005
    assert max(abs(pair.reserved_error) for pair in found) < 0.03


def test_every_case_ends_as_on_the_phantom() -> None:
    cases, other = against.statuses(RESULTS)
    assert cases
    assert other == []


def test_run_anew_they_are_the_same() -> None:
    made_with = json.loads(next((RESULTS / "emulated").glob(f"*/{oracle.MADE_WITH}")).read_text(encoding="utf-8"))
    here = fingerprint({})
    if any(str(here[name]).partition("+")[0] != made_with["versions"][name].partition("+")[0] for name in LIBRARIES):
        pytest.skip("made with other versions than are installed here")
    small = [line for line in _lines() if "135M" in str(line["case"]) and line["status"] == "ok"]
    for line in small[:3]:
        gpu, case = str(line.pop("gpu")), Case.from_dict(line["case"])  # type: ignore[arg-type]
        device = devices.choose("dryrun", oracle.gpu_of(gpu))
        (record,) = runner.run(runner.plan([case], device), device, runner.Options())
        assert json.loads(oracle.written(record)) == line


def test_cases_are_taken_by_chance_and_not_by_what_they_are() -> None:
    order = sorted(against.recordings(RESULTS), key=against._by_chance)
    first = {one.case.workload for one in order[:60]}
    assert first == {"inference", "sft", "lora", "grpo"}
