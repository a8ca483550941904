"""Phantom A100s beside published figures: the page is what the files give, and how near the figures are."""

from __future__ import annotations

from pathlib import Path

import pytest

from nooom.benchmarks.emulated_against_published import AS_RUN, PAGE, as_run, old, page, today
from nooom.benchmarks.oracle import MADE_WITH
from nooom.benchmarks.shipped import RESULTS
from nooom.formulas.errors import UsageError

FOLDER = RESULTS / "emulated"
VERSIONS = sorted(path.parent for path in FOLDER.glob(f"*/{MADE_WITH}"))[-1]


def test_the_committed_page_is_what_the_files_give() -> None:
    assert (FOLDER / PAGE).read_text(encoding="utf-8") == page(FOLDER, VERSIONS)


def test_in_their_own_versions_published_peaks_agree_to_the_byte() -> None:
    published = [pair for pair, line in old(FOLDER) if pair.off_bytes == 0 and line["attention"] == "flash_attention_2"]
    assert [pair.id for pair in published] == ["M1168", "M1176", "M1179", "M1184", "M1187"]
    for pair in published:
        assert pair.end_bytes == pair.published.phases[0].end_allocated_bytes


def test_the_one_that_does_not_is_two_unsplit_rests_off() -> None:
    (pair,) = [pair for pair, _ in old(FOLDER) if pair.id == "M1171"]
    assert -(2 << 20) < pair.off_bytes < 0
    assert pair.end_bytes == pair.published.phases[0].end_allocated_bytes


def test_sdpa_costs_the_causal_mask_that_flash_attention_does_without() -> None:
    peaks = {(pair.id, line["attention"], line["vocab_size"]): pair.peak_bytes for pair, line in old(FOLDER)}
    for figure, batch in (("M1184", 4), ("M1187", 8)):
        more = peaks[figure, "sdpa", 32_001] - peaks[figure, "flash_attention_2", 32_001]
        assert more == batch * 4096 * 4096 * 2


@pytest.mark.parametrize(("figure", "within"), [("M1176", 1e-4), ("M1179", 1e-4), ("M0157", 1e-3), ("M0197", 1e-3),
                                               ("M0201", 1e-3), ("M0205", 1e-3), ("M0213", 1e-3), ("M0217", 1e-3),
                                               ("M0221", 1e-3)])  # fmt: skip
def test_todays_versions_come_near(figure: str, within: float) -> None:
    (pair,) = [pair for pair in today(VERSIONS) if pair.id == figure]
    assert pair.beyond_rounding <= within


def test_as_their_script_ran_them_prefills_print_what_was_published() -> None:
    rows = as_run(FOLDER)
    assert [pair.id for pair, _ in rows] == [
        "M0145", "M0149", "M0153", "M0157", "M0193", "M0197", "M0201", "M0205", "M0209", "M0213", "M0217", "M0221",
    ]  # fmt: skip
    (other,) = [pair for pair, _ in rows if pair.beyond_rounding_bytes]
    assert other.id == "M0153"
    assert other.off_bytes < 0
    assert other.beyond_rounding_bytes < 1 << 20  # one rest that the allocator leaves unsplit


def test_the_rows_of_that_script_are_the_published_cases() -> None:
    for pair, line in as_run(FOLDER):
        case = pair.published.case
        assert (line["model"], line["length"]) == (case["model"], case["seq"])
        assert line["requested_bytes"] < line["peak_bytes"]
        assert (line["torch"], line["transformers"]) == ("2.4.1", "4.46.0")


def test_an_id_that_was_not_published_is_refused(tmp_path: Path) -> None:
    (tmp_path / AS_RUN).write_text('{"id": "M9999"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"as_run\.jsonl:1: 'M9999' is no published record"):
        as_run(tmp_path)
