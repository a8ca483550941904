"""``report.json``: everything, in the form that docs/report.schema.json describes."""

from __future__ import annotations

import json

from nooom.benchmarks import gate
from nooom.benchmarks.reports.gate.about import About
from nooom.benchmarks.reports.gate.words import lines_of

_EMPTY = '"rows": []'


def as_json(report: gate.Report, about: About) -> str:
    """Keys sorted, a row a line; ASCII alone, so that text that is no Unicode survives too."""
    document = {**report.to_json(), "about": about.to_json()}
    rows, document["rows"] = document["rows"], []
    text = json.dumps(document, allow_nan=False, indent=1, sort_keys=True) + "\n"
    # In a text from outside its quotes would be escaped: this is the only place that looks so.
    before, _, after = text.partition(_EMPTY)
    return f'{before}"rows": {lines_of(rows)}{after}'
