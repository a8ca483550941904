"""What the reports print on: figures stay whole, text stays as it is, and a reader who has enough ends nothing badly."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table

from nooom.benchmarks.reports.console import NARROWEST, console


@pytest.mark.parametrize("columns", ["0", "1", "20"])
def test_a_terminal_without_room_cuts_no_figure(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == NARROWEST


def test_text_is_neither_markup_nor_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table()
    table.add_column("[red]x[/blue]")
    table.add_row(":smile:")
    console().print(table)
    shown = capsys.readouterr().out
    assert "[red]x[/blue]" in shown
    assert ":smile:" in shown


def test_what_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console().print("modèle \udcff")
    sys.stdout.flush()
    assert raw.getvalue() == b"mod\\xe8le \\udcff\n"


def test_a_reader_who_has_enough_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        console().print("one line")
