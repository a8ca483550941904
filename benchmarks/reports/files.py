"""The same rows as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from nooom.benchmarks.compare import Row
from nooom.benchmarks.reports.terminal import cells
from nooom.benchmarks.sources import PEAK


def as_csv(rows: Sequence[Row], sources: Sequence[str] = ("article",)) -> str:
    """Exact bytes and unrounded errors, one row a (case, phase)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["case_id", "case", "workload", "source", "device", "status", "phase", "measured_bytes"]
    writer.writerow(head + [name for source in sources for name in (f"{source}_bytes", f"{source}_error")])
    for row in rows:
        line = [row.case_id, row.label, row.workload, row.source, row.device, row.status, row.phase, row.measured_bytes]
        for source in sources:
            error = row.error(source)
            line += [row.predicted_bytes.get(source), None if error is None else f"{error:.6f}"]
        writer.writerow(line)
    return out.getvalue()


def as_markdown(rows: Sequence[Row], sources: Sequence[str] = ("article",)) -> str:
    """GiB, as on the screen; a case's peak in bold."""
    names = ["measured", *(name for source in sources for name in (source, "error"))]
    lines = [
        "| case | evidence | phase | " + " | ".join(names) + " |",
        "|---|---|---|" + "--:|" * len(names),
    ]
    before = None
    for row in rows:
        texts = [row.phase, *cells(row, sources)]
        if row.phase == PEAK:
            texts = [f"**{text}**" for text in texts]
        named = [row.label, row.evidence] if row.record != before else ["", ""]
        before = row.record
        lines.append("| " + " | ".join(named + texts) + " |")
    return "\n".join(lines) + "\n"
