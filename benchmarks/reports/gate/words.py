"""How a gate's rows are said in words and figures, the same in every form that people read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nooom.benchmarks import gate
from nooom.benchmarks.reports.figures import percent
from nooom.benchmarks.reports.gate.about import About
from nooom.profiler.regression import Grown

LONGEST = 300
"""Characters of one name that are shown; CSV and JSON have all of them."""
_SUSPECTS = 20
"""Differences that are named; a fingerprint with more than that is another installation."""
KINDS = {"component": "component", "tensor": "tensor", "hidden": "no tensor"}
"""How each kind of :class:`Grown` is called."""
STATES = {
    "regression": "regression",
    "oom": "out of memory",
    "error": "error",
    "missing": "missing",
    "not_comparable": "not comparable",
    "skipped": "skipped",
    "new": "new",
    "fixed": "fixed",
    "improvement": "improvement",
    "pass": "pass",
}
_COUNTED = {"regression": "regressions", "error": "errors", "improvement": "improvements"}
"""The states whose name is a noun, of more than one."""


def plain(text: str, longest: int = LONGEST) -> str:
    r"""One printable line: what does not print, line ends and terminals' escapes among it, as ``\n`` or ``\x1b``."""
    shown = text if len(text) <= longest else text[: longest - 3] + "..."
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def lines_of(records: Iterable[Mapping[str, Any]]) -> str:
    """A JSON list, a record a line: diffs read well, and indenting each value takes ten times as long."""
    encoder = json.JSONEncoder(allow_nan=False, sort_keys=True)
    lines = ",\n  ".join([encoder.encode(record) for record in records])
    return f"[\n  {lines}\n ]" if lines else "[]"


def size(size_bytes: int | None) -> str:
    """``14.335 GiB``, ``96.000 MiB`` below one GiB; a dash where unknown."""
    return "-" if size_bytes is None else _figure(size_bytes, "")


def change(change_bytes: int | None) -> str:
    """``+4.500 GiB``, ``-96.000 MiB`` below one GiB; a dash where unknown."""
    return "-" if change_bytes is None else _figure(change_bytes, "+")


def _figure(value: int, sign: str) -> str:
    if abs(value) / 2**20 >= 1023.9995:  # or it would be rounded to 1024.000 MiB
        return f"{value / 2**30:{sign}.3f} GiB"
    # The least that an allocator rounds to is 512 bytes: where nothing may grow, that is not nothing.
    decimals = 6 if 0 < abs(value) < 1 << 10 else 3
    return f"{value / 2**20:{sign}.{decimals}f} MiB"


def moved(row: gate.Row) -> str | None:
    """``14.335 GiB -> 18.835 GiB  +4.500 GiB (+31.4%)  band 0.000 MiB``: what is known of it, or None."""
    if row.baseline_bytes is None and row.current_bytes is None:
        return None
    if row.current_bytes is None:
        parts = [f"{size(row.baseline_bytes)} before"]
    elif row.baseline_bytes is None:
        parts = [f"{size(row.current_bytes)} now"]
    else:
        parts = [f"{size(row.baseline_bytes)} -> {size(row.current_bytes)}"]
    if row.change_bytes is not None:
        ratio = "" if row.change_ratio is None else f" ({percent(row.change_ratio)})"
        parts.append(change(row.change_bytes) + ratio)
    if row.band_bytes is not None:
        parts.append(f"band {size(row.band_bytes)}")
    return "  ".join(parts)


def named(row: gate.Row) -> str:
    """The case and its phase, and whose figures these are."""
    phase = "" if row.phase is None else f", {plain(row.phase)}"
    side = "" if row.side is None else f" in {plain(row.side)}"
    return plain(row.label) + phase + side


def details(row: gate.Row) -> Iterator[str]:
    """What stands behind a row, a line each: what grew, the suspects, the note."""
    for one in by_kind(row.grew):
        yield f"{KINDS.get(one.kind, 'tensor'):<9}  {change(one.change_bytes)}  {plain(one.name)}"
    for suspect in suspects(row):
        yield f"suspect    {suspect}"
    if row.note is not None:
        yield f"note       {plain(row.note)}"


def by_kind(grew: Iterable[Grown]) -> list[Grown]:
    """Components, then tensors, then what no tensor owns, each in its order."""
    order = list(KINDS)
    return sorted(grew, key=lambda one: order.index(one.kind) if one.kind in order else len(order))


def suspects(row: gate.Row) -> list[str]:
    shown = [plain(one) for one in row.suspects[:_SUSPECTS]]
    left = len(row.suspects) - len(shown)
    return [*shown, f"and {left} more"] if left else shown


def case_of(row: gate.Row) -> tuple[str, gate.Group, str | None]:
    """What the rows of one case share."""
    return row.case_id, row.group, row.side


def worst_of_each(rows: Iterable[gate.Row], states: Sequence[str]) -> list[gate.Row]:
    """The first, which is the worst, row of each case that is in one of the states."""
    found: dict[tuple[str, gate.Group, str | None], gate.Row] = {}
    for row in rows:
        if row.state in states:
            found.setdefault(case_of(row), row)
    return list(found.values())


def headline(report: gate.Report, about: About) -> str:
    """The verdict: ``2 regressions in 1 of 340 cases``, ``no regression in 340 cases``."""
    cases = report.cases
    total = sum(cases.values())
    whole = f"{total} case{'s' * (total != 1)}"
    if failed := counted(report, gate.FAILED):
        return f"{failed} in {sum(cases[state] for state in gate.FAILED)} of {whole}"
    if not any(report.counts[state] for state in gate.COMPARED):
        return f"nothing was compared, {whole}"
    if about.exit_code == 3:
        # As --require-gpu has it: something was compared, but not what was asked for.
        return f"no regression in {whole}, none of which ran on the GPU that was required"
    if about.exit_code:
        return f"undecided in {sum(cases[state] for state in gate.UNDECIDED)} of {whole}, which fails this check"
    return f"no regression in {whole}"


def others(report: gate.Report) -> str:
    """What the headline leaves out: ``1 skipped, 3 improvements, 330 pass``."""
    return counted(report, [state for state in gate.STATES if state not in gate.FAILED])


def counted(report: gate.Report, states: Sequence[str]) -> str:
    """``2 regressions, 1 out of memory``: the rows of some states, those of which there are any."""
    counts = report.counts
    return ", ".join(f"{counts[state]} {_word(state, counts[state])}" for state in states if counts[state])


def _word(state: str, count: int) -> str:
    return STATES[state] if count == 1 else _COUNTED.get(state, STATES[state])
