"""Dry runs beside published figures: the pages are what the lines give, every miss has a cause, two lines anew."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from nooom.benchmarks import accuracy
from nooom.benchmarks.reports.accuracy import (
    DRY_RUN,
    EXPLAINED_FROM,
    PAGE,
    PHANTOM,
    TABLE,
    Line,
    as_csv,
    as_markdown,
    cause,
    gather,
    summary,
    with_summary,
)
from nooom.benchmarks.shipped import RESULTS
from nooom.formulas.case import Case

FOLDER = RESULTS / accuracy.FOLDER
README = RESULTS.parent / "README.md"


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return gather(RESULTS)


def test_the_committed_pages_are_what_the_lines_give(lines: list[Line]) -> None:
    versions = json.loads((FOLDER / accuracy.MADE_WITH).read_text(encoding="utf-8"))["versions"]
    assert (RESULTS / PAGE).read_text(encoding="utf-8") == as_markdown(lines, versions)
    assert (RESULTS / TABLE).read_text(encoding="utf-8") == as_csv(lines)


def test_readme_shows_the_scores(lines: list[Line]) -> None:
    text = README.read_text(encoding="utf-8")
    assert with_summary(text, summary(lines)) == text


def test_every_row_that_can_be_dry_run_is(lines: list[Line]) -> None:
    assert len(lines) == 65
    left_out = [line for line in lines if DRY_RUN not in line.predicted_bytes]
    assert {line.case.quantization for line in left_out} == {"nf4"}
    assert all(line.case.quantization == "none" for line in lines if line not in left_out)


def test_every_row_that_is_off_says_why(lines: list[Line]) -> None:
    for line in lines:
        error = line.error(DRY_RUN)
        assert bool(cause(line)) == (error is None or abs(error) > EXPLAINED_FROM), line.id


def test_phantoms_in_the_versions_of_their_time_are_near(lines: list[Line]) -> None:
    errors = {line.id: line.error(PHANTOM) for line in lines if PHANTOM in line.predicted_bytes}
    assert len(errors) >= 55
    assert max(abs(error) for error in errors.values() if error is not None) < 0.005


def test_what_was_run_is_what_the_records_ask_for() -> None:
    committed = accuracy.lines(FOLDER)
    for record in accuracy.published():
        wanted = accuracy.parts(Case.from_dict(record.case))
        runs = committed[accuracy.id_of(record)]["runs"] if wanted else []
        assert [Case.from_dict(run["case"]) for run in runs] == [part.case for part in wanted]
        for run, part in zip(runs, wanted, strict=True):
            assert not part.without & run["phases"].keys()


def test_the_lines_are_sorted_and_their_peak_is_one_of_a_phase() -> None:
    texts = (FOLDER / accuracy.LINES).read_text(encoding="utf-8").splitlines()
    assert texts == sorted(texts)
    for line in accuracy.lines(FOLDER).values():
        assert line["peak_bytes"] in [run["phases"].get(line["in"]) for run in line["runs"]]


def test_a_long_completion_is_its_prompt_and_its_last_tokens() -> None:
    case = Case(model="Qwen/Qwen2.5-0.5B", workload="inference", seq=100, new_tokens=50, pretrained=True)
    prompt, last = accuracy.parts(case)
    assert (prompt.case.seq, prompt.case.new_tokens, prompt.without) == (100, 0, {"load"})
    assert (last.case.seq, last.case.new_tokens, last.without) == (146, 4, {"load", "prefill"})
    assert not prompt.case.pretrained


def test_flash_attention_is_sdpa_and_nf4_is_not_run() -> None:
    lora = Case(model="Qwen/Qwen2.5-0.5B", workload="lora", attention="flash_attention_2")
    (part,) = accuracy.parts(lora)
    assert (part.case.attention, part.without) == ("sdpa", set())
    assert accuracy.parts(dataclasses.replace(lora, quantization="nf4")) == []


@pytest.mark.slow
def test_two_rows_anew_are_the_committed_lines(tmp_path: Path) -> None:
    records = [record for record in accuracy.published() if accuracy.id_of(record) in ("M0809", "M1168")]
    committed = (FOLDER / accuracy.LINES).read_text(encoding="utf-8").splitlines()
    anew = accuracy.run(records, tmp_path)
    assert len(anew) == 2
    assert set(anew) <= set(committed)
    assert accuracy.run(records, tmp_path) == anew  # nothing runs: both wait there


@pytest.mark.slow
def test_the_last_tokens_of_a_completion_take_what_they_take_after_all_the_others() -> None:
    whole = Case(model="HuggingFaceTB/SmolLM2-135M", workload="inference", batch=4, seq=64, new_tokens=8, steps=1)
    parts = accuracy.parts(whole)
    done = accuracy.measured([whole, *(part.case for part in parts)])
    peaks = {phase.name: phase.peak_allocated_bytes for phase in done[whole.case_id()].phases}
    for part in parts:
        for phase in done[part.case.case_id()].phases:
            if phase.name not in part.without:  # generate keeps small copies of the prompt, rounded up to 512 B each
                assert phase.peak_allocated_bytes == pytest.approx(peaks[phase.name], rel=3e-4), phase.name
