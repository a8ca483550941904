"""The same rows on screen, as CSV and as Markdown; the README shows what results/demo holds."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from nooom.benchmarks.compare import compare
from nooom.benchmarks.frame import as_frame, load
from nooom.benchmarks.reports.figures import gib, percent
from nooom.benchmarks.reports.files import as_csv, as_markdown
from nooom.benchmarks.reports.publish import with_table
from nooom.benchmarks.reports.terminal import show
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement, Phase

ROOT = Path(__file__).resolve().parents[3]


def measurement(status: str = "ok") -> Measurement:
    case = Case(model="HuggingFaceTB/SmolLM2-135M", workload="inference", batch=2, seq=64)
    phases = [Phase(name="load", peak_allocated_bytes=300_000_000), Phase(name="prefill", peak_allocated_bytes=1 << 30)]
    return Measurement(
        case_id=case.case_id(), case=case.to_dict(), source="measured", device="cpu", status=status, phases=phases
    )


def test_errors_are_signed_and_relative_to_the_measured() -> None:
    load, prefill, peak = compare(as_frame([measurement()]))
    assert load.predicted_bytes["article"] == 2 * 134_515_008
    assert load.error("article") == pytest.approx((2 * 134_515_008 - 300_000_000) / 300_000_000)
    assert peak.measured_bytes == prefill.measured_bytes == 1 << 30
    assert prefill.error("nobody") is None


def test_a_case_that_ran_out_of_memory_shows_it_and_claims_no_figure() -> None:
    (row,) = compare(as_frame([measurement("oom")]))
    assert (row.phase, row.status, row.measured_bytes) == ("peak", "oom", None)
    assert row.error("article") is None
    assert "| **oom** |" in as_markdown([row])


def test_the_three_renderers_say_the_same() -> None:
    rows = compare(as_frame([measurement()]))
    console = Console(width=80, record=True, file=io.StringIO())
    show(rows, console)
    shown = console.export_text()
    assert "SmolLM2-135M inference 2x64 (measured on cpu)" in shown
    assert max(map(len, shown.splitlines())) <= 80
    table = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert [line["phase"] for line in table] == ["load", "prefill", "peak"]
    assert int(table[1]["measured_bytes"]) == 1 << 30
    for row in rows:
        assert gib(row.measured_bytes) in shown
        assert percent(row.error("article")) in as_markdown(rows)


def test_figures() -> None:
    assert (gib(None), gib(0), gib(3 << 29)) == ("-", "0.000", "1.500")
    assert (percent(None), percent(-0.1234), percent(0.5), percent(29.0)) == ("-", "-12.3%", "+50.0%", "x30.0")


def test_the_readme_shows_exactly_what_was_measured() -> None:
    folder = ROOT / "results" / "demo"
    rows = compare(load(folder))
    assert (folder / "table.md").read_text() == as_markdown(rows)
    assert (folder / "table.csv").read_text() == as_csv(rows)
    readme = (ROOT / "README.md").read_text()
    assert with_table(readme, as_markdown(rows)) == readme


def test_a_text_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(UsageError, match="no place for the table"):
        with_table("no markers", "| a |")
