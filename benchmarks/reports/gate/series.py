"""``benchmark.json``: what github-action-benchmark plots over time as ``customSmallerIsBetter``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nooom.benchmarks import gate
from nooom.benchmarks.reports.gate.words import change, lines_of, plain

_WHOLE = "peak"
"""What a case that has no baseline to be told apart by phases is plotted as."""


def as_json(report: gate.Report) -> str:
    """One point for each phase that has a current figure, by name: the page keeps the order it is given."""
    points = sorted(_points(report), key=lambda point: str(point["name"]))
    return lines_of(points) + "\n"


def _points(report: gate.Report) -> Iterator[dict[str, Any]]:
    for row in report.rows:
        if row.current_bytes is None:
            continue
        side = "" if row.side is None else f", {plain(row.side)}"
        point: dict[str, Any] = {
            # Figures of two groups are never compared: each has a line of its own.
            "name": f"{plain(row.label)}: {plain(row.phase or _WHOLE)} ({plain(str(row.group))}{side})",
            "unit": "bytes",
            "value": row.current_bytes,
        }
        if row.band_bytes:
            point["range"] = f"± {row.band_bytes}"
        moved = "" if row.change_bytes is None else f", {change(row.change_bytes)}"
        yield {**point, "extra": f"{row.state}{moved}\ncase_id {plain(row.case_id)}"}
