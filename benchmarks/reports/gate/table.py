"""``report.csv``: exact bytes, one row a row of the report."""

from __future__ import annotations

import re
from typing import Any

from nooom.benchmarks import gate

COLUMNS = (
    "case_id",
    "case",
    "phase",
    "state",
    "evidence",
    "gpu",
    "torch",
    "side",
    "baseline_bytes",
    "current_bytes",
    "change_bytes",
    "change_ratio",
    "band_bytes",
    "baseline_reserved_bytes",
    "current_reserved_bytes",
    "baseline_nvml_bytes",
    "current_nvml_bytes",
    "grew",
    "suspects",
    "note",
)
_QUOTED = re.compile('[",\r\n]')
# What a spreadsheet takes for a formula, or skips before one.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_csv(report: gate.Report) -> str:
    """Unknown is empty.  Text that a spreadsheet would take for a formula begins with an apostrophe; figures don't."""
    lines = [",".join(COLUMNS)]
    for row in report.rows:
        record = row.to_json()
        record["grew"] = "; ".join(f"{one.kind} {one.name} {one.change_bytes:+d}" for one in row.grew)
        record["suspects"] = "; ".join(row.suspects)
        lines.append(",".join([_cell(record[name]) for name in COLUMNS]))
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    """Quoted by hand: Python's writer leaves a lone carriage return bare before 3.13, where readers end the line."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value)
    text = f"'{value}" if value.startswith(_FORMULA) else value
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text
