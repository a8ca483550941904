"""``summary.md``: the verdict and the worst rows, for a CI job's summary.

The tables are HTML: a cell can span a row there, which a list of what grew needs, and of what stands in an HTML block
nothing is Markdown.  So text from outside needs one escape; ``<code>`` keeps ``@names`` from being mentions.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from nooom.benchmarks import gate
from nooom.benchmarks.reports.figures import percent
from nooom.benchmarks.reports.gate.about import About
from nooom.benchmarks.reports.gate.words import KINDS, STATES, by_kind, change, headline, others, plain, size, suspects

LIMIT_BYTES = 1 << 20
"""GitHub refuses a summary that is larger, all of it."""
_SYMBOLS = {
    **dict.fromkeys(gate.FAILED, "❌"),
    **dict.fromkeys(gate.UNDECIDED, "⚠️"),
    "new": "🆕",
    "improvement": "⬇️",
    **dict.fromkeys(("fixed", "pass"), "✅"),
}
_FOLDED = ("skipped", "new", "pass")
"""What can be as many as there are cases, and asks nobody to do anything."""
_COLUMNS = ("case", "phase", "state", "baseline", "current", "change", "%", "band")
_RESERVE = 4000
"""Bytes for the lines that say what was left out, and the ends of tables."""


def as_markdown(report: gate.Report, about: About) -> str:
    """The whole file, smaller than :data:`LIMIT_BYTES`: rows that find no room are counted, the passing ones first."""
    page = _Page(report)
    symbol = "✅" if about.exit_code == 0 else "❌"
    rest = others(report)
    page.add(f"**{symbol} {headline(report, about)}**" + (f" ({rest})" if rest else "") + "\n\n")
    where = "".join(f", {_code(str(group))}" for group in page.groups[:1]) if len(page.groups) == 1 else ""
    page.add(f"<p>baseline {_code(about.baseline)}, current {_code(about.current)}{where}</p>\n")
    folded = [state for state in _FOLDED if not (about.strict and state in gate.UNDECIDED)]
    page.table([row for row in report.rows if row.state not in folded])
    below = [row for row in report.rows if row.state in folded]
    if below:
        page.add(f"<details><summary>{len(below)} more rows: {_of(below)}</summary>\n")
        page.table(below)
        page.add("</details>\n")
    page.add("\nBytes of `max_memory_allocated`; every row, in exact bytes, is in report.csv and report.json.\n")
    return "".join(page.parts)


class _Page:
    """A text that grows as far as the limit."""

    def __init__(self, report: gate.Report) -> None:
        self.parts: list[str] = []
        self.left = LIMIT_BYTES - _RESERVE
        self.groups = list(dict.fromkeys(row.group for row in report.rows))
        # What the evidence has no figure of, such as reserved memory on the CPU, gets no column.
        self.reserved = any(_difference(row.reserved) is not None for row in report.rows)
        self.nvml = any(_difference(row.nvml) is not None for row in report.rows)

    def add(self, text: str) -> None:
        self.parts.append(text)
        self.left -= len(text.encode())

    def table(self, rows: Sequence[gate.Row]) -> None:
        """Rows as long as there is room, and how many there was none for."""
        if not rows:
            return
        columns = [*_COLUMNS, *(["reserved"] * self.reserved), *(["NVML"] * self.nvml)]
        self.add("<table>\n<tr>" + "".join(f"<th>{column}</th>" for column in columns) + "</tr>\n")
        for number, row in enumerate(rows):
            text = "".join(self._row(row, len(columns)))
            if len(text.encode()) > self.left:
                self.parts.append(
                    f'<tr><td colspan="{len(columns)}">{len(rows) - number} rows left out, there is no room: '
                    f"{_of(rows[number:])}</td></tr>\n"
                )
                self.left = 0
                break
            self.add(text)
        self.parts.append("</table>\n")

    def _row(self, row: gate.Row, width: int) -> Iterator[str]:
        texts = [self._case(row), _code(row.phase) if row.phase is not None else "", _state(row)]
        figures = [size(row.baseline_bytes), size(row.current_bytes), change(row.change_bytes)]
        figures += [percent(row.change_ratio), size(row.band_bytes)]
        figures += [change(_difference(row.reserved))] * self.reserved + [change(_difference(row.nvml))] * self.nvml
        cells = [f"<td>{text}</td>" for text in texts] + [f'<td align="right">{figure}</td>' for figure in figures]
        yield f"<tr>{''.join(cells)}</tr>\n"
        if lines := list(_behind(row)):
            yield f'<tr><td></td><td colspan="{width - 1}">{"<br>".join(lines)}</td></tr>\n'

    def _case(self, row: gate.Row) -> str:
        side = "" if row.side is None else f" in {_code(row.side)}"
        group = f"<br>{_code(str(row.group))}" if len(self.groups) > 1 else ""
        return _code(row.label) + side + group


def _behind(row: gate.Row) -> Iterator[str]:
    """What grew, components before tensors; the suspects; the note."""
    for one in by_kind(row.grew):
        yield f"{KINDS.get(one.kind, 'tensor')} <b>{change(one.change_bytes)}</b> {_code(one.name)}"
    if row.suspects:
        yield "suspects: " + ", ".join(_code(one) for one in suspects(row))
    if row.note is not None:
        yield _code(row.note)


def _state(row: gate.Row) -> str:
    return f"{_SYMBOLS[row.state]} {STATES[row.state]}"


def _of(rows: Iterable[gate.Row]) -> str:
    """``3 new, 330 pass``."""
    report = gate.Report(rows=tuple(rows))
    return ", ".join(f"{count} {STATES[state]}" for state, count in report.counts.items() if count)


def _difference(pair: tuple[int | None, int | None]) -> int | None:
    before, after = pair
    return None if before is None or after is None else after - before


def _code(text: str) -> str:
    return f"<code>{html.escape(plain(text))}</code>"
