"""``python -m nooom.benchmarks.reports.publish RESULTS FOLDER README``: a run's output as committed files.

Writes the journal, a CSV and a Markdown table to FOLDER, and puts the table between README's markers, so that every
figure there is one that a command made.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nooom.benchmarks.compare import compare
from nooom.benchmarks.frame import load
from nooom.benchmarks.journal import FILE_NAME
from nooom.benchmarks.reports.files import as_csv, as_markdown
from nooom.benchmarks.reports.markers import between
from nooom.formulas.errors import NooomError

BEGIN, END = "<!-- demo table: made by make demo-results -->", "<!-- end of demo table -->"


def publish(results: Path, folder: Path, readme: Path) -> None:
    """Raises UsageError where README has no place for the table."""
    rows = compare(load(results))
    folder.mkdir(parents=True, exist_ok=True)
    source = results if results.is_file() else results / FILE_NAME
    (folder / FILE_NAME).write_bytes(source.read_bytes())
    (folder / "table.csv").write_text(as_csv(rows), encoding="utf-8")
    (folder / "table.md").write_text(as_markdown(rows), encoding="utf-8")
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), as_markdown(rows)), encoding="utf-8")


def with_table(text: str, table: str) -> str:
    """The text with the table between its markers."""
    return between(text, BEGIN, END, table)


if __name__ == "__main__":
    try:
        publish(*(Path(argument) for argument in sys.argv[1:4]))
    except NooomError as problem:
        sys.exit(f"publish: {problem}")
