"""``python -m nooom.benchmarks.reports.gate.publish CHECK SHOWN FOLDER README``: a check's report as committed files.

CHECK is the check's ``--out``, SHOWN what it printed: its headline and what failed are put between README's markers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nooom.benchmarks.reports.markers import between
from nooom.formulas.errors import NooomError

BEGIN, END = "<!-- library upgrade: made by make library-upgrade -->", "<!-- end of library upgrade -->"
_FILES = ("report.json", "summary.md")


def publish(check: Path, shown: Path, folder: Path, readme: Path) -> None:
    """Raises UsageError where README has no place for it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        (folder / name).write_bytes((check / name).read_bytes())
    text = shown.read_text(encoding="utf-8")
    (folder / "shown.txt").write_text(text, encoding="utf-8")
    readme.write_text(between(readme.read_text(encoding="utf-8"), BEGIN, END, excerpt(text)), encoding="utf-8")


def excerpt(shown: str) -> str:
    """The headline and the first of what failed, as a block of text in Markdown."""
    headline, *rest = shown.strip().split("\n\n")
    failed = [paragraph for paragraph in rest if not paragraph.startswith(("improvement", "new", "skipped"))]
    return "\n".join(["```", headline.splitlines()[0], "", *failed[:1], "```", ""])


if __name__ == "__main__":
    try:
        publish(*(Path(argument) for argument in sys.argv[1:5]))
    except NooomError as problem:
        sys.exit(f"publish: {problem}")
