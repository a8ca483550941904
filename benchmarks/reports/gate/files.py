"""The files of one check, written into a folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from nooom.benchmarks import gate
from nooom.benchmarks.reports.gate import document, junit, series, summary, table
from nooom.benchmarks.reports.gate.about import About
from nooom.formulas.errors import UsageError


def rendered(report: gate.Report, about: About) -> dict[str, str]:
    """Every file's text by its name."""
    return {
        "report.json": document.as_json(report, about),
        "report.csv": table.as_csv(report),
        "summary.md": summary.as_markdown(report, about),
        "junit.xml": junit.as_xml(report, about),
        "benchmark.json": series.as_json(report),
    }


def written(report: gate.Report, out: Path, about: About) -> list[Path]:
    """Write them all, each of them whole or not at all; the paths.

    Raises:
        UsageError: the folder can't be made or written into.
    """
    texts = rendered(report, about)
    paths = {out / name: out / f".{name}.{os.getpid()}" for name in texts}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for beside, text in zip(paths.values(), texts.values(), strict=True):
            # What is no Unicode, half of a pair, can't be written otherwise; JSON has escaped it already.
            beside.write_bytes(text.encode("utf-8", errors="backslashreplace"))
        for path, beside in paths.items():
            beside.replace(path)
    except OSError as error:
        for beside in paths.values():
            with contextlib.suppress(OSError):
                beside.unlink()
        what = error.filename2 or error.filename or out
        raise UsageError(f"--out {out}: can't write {what}: {error.strerror}") from error
    return list(paths)
