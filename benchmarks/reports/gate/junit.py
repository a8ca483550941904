"""``junit.xml``: for whatever shows test results; a suite is one machine's, a test one phase of one case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nooom.benchmarks import gate
from nooom.benchmarks.reports.gate.about import About
from nooom.benchmarks.reports.gate.words import STATES, details, moved

_OUTCOMES = {
    "regression": "failure",
    "oom": "failure",
    "missing": "failure",
    "error": "error",
    "not_comparable": "skipped",
    "skipped": "skipped",
}
"""What is not here passed."""
_COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_ELSEWHERE = {"case", "phase", "grew", "suspects", "note", "evidence", "gpu", "torch"}
"""What a test says in its name, its message or its suite, and so not among its properties."""
# What no XML 1.0 document may hold, not even as a reference.
FORBIDDEN = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_SPECIAL = re.compile(f"{FORBIDDEN}|[&<>\"'\t\n\r]")
# White space as references too: a parser makes blanks of it in attributes, and a newline of a carriage return.
_REFERENCES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&apos;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}


def as_xml(report: gate.Report, about: About) -> str:
    """Suites in the order of their worst test, tests in the report's.  ``strict``: what is undecided failed."""
    outcomes = {**_OUTCOMES, **(dict.fromkeys(gate.UNDECIDED, "failure") if about.strict else {})}
    suites: dict[gate.Group, list[gate.Row]] = {}
    for row in report.rows:
        suites.setdefault(row.group, []).append(row)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="nooom check"{_totals(report.rows, outcomes)}>',
    ]
    for group, rows in suites.items():
        lines.append(f" <testsuite name={_quoted(str(group))}{_totals(rows, outcomes)}>")
        machine = {name: value for name, value in group._asdict().items() if value is not None}
        lines += _properties({"baseline": about.baseline, "current": about.current, **machine}, "  ")
        for row in rows:
            lines += _test(row, outcomes.get(row.state))
        lines.append(" </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _test(row: gate.Row, outcome: str | None) -> Iterator[str]:
    side = "" if row.side is None else f" in {row.side}"
    yield f"  <testcase classname={_quoted(row.label + side)} name={_quoted(row.phase or 'the case')}>"
    known = {name: value for name, value in row.to_json().items() if value is not None and name not in _ELSEWHERE}
    yield from _properties(known, "   ")
    behind = _escaped("\n".join(details(row)))
    if outcome is not None:
        message = "; ".join(filter(None, [STATES[row.state], moved(row), row.note]))
        kind = "" if outcome == "skipped" else f' type="{row.state}"'  # the format has no type of what is skipped
        yield f"   <{outcome} message={_quoted(message)}{kind}>{behind}</{outcome}>"
    elif behind:
        yield f"   <system-out>{behind}</system-out>"
    yield "  </testcase>"


def _totals(rows: Sequence[gate.Row], outcomes: Mapping[str, str]) -> str:
    found = Counter(outcomes.get(row.state) for row in rows)
    counts = "".join(f' {name}="{found[outcome]}"' for outcome, name in _COUNTS.items())
    return f' tests="{len(rows)}"{counts}'


def _properties(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    yield f"{indent}<properties>"
    for name, value in values.items():
        shown = _quoted(value) if isinstance(value, str) else f'"{value!r}"'
        yield f'{indent} <property name="{name}" value={shown}/>'
    yield f"{indent}</properties>"


def _quoted(text: str) -> str:
    return f'"{_SPECIAL.sub(_reference, text)}"'


def _escaped(text: str) -> str:
    return "\n".join([_SPECIAL.sub(_reference, line) for line in text.split("\n")])


def _reference(found: re.Match[str]) -> str:
    return _REFERENCES.get(found[0], "\N{REPLACEMENT CHARACTER}")
