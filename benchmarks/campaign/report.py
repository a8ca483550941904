"""``differences.md``, and what README says of the results: the same rows, rendered."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from nooom.benchmarks.campaign.causes import UNKNOWN, Cause, cause_of
from nooom.benchmarks.campaign.differences import LARGE, SIDES, Difference
from nooom.benchmarks.reports.figures import gib
from nooom.benchmarks.sources import PEAK

BEGIN, END = "<!-- hardware: made by make gpu-results -->", "<!-- end of hardware -->"

EVIDENCE = {False: "measured on cuda", True: "emulated on phantom"}
"""What stands in the first column of figures, by whether it is a rehearsal."""
_REHEARSAL = (
    "**A rehearsal: no GPU took part.** What is emulated stands here where measured figures will, and nothing says "
    "anything of hardware."
)


def unknown(rows: Sequence[Difference], causes: Sequence[Cause]) -> dict[str, int]:
    """How many large differences of each side have no cause yet."""
    return {side: sum(row.is_large(side) and _cause(row, side, causes) is None for row in rows) for side in SIDES}


def page(rows: Sequence[Difference], causes: Sequence[Cause], evidence: str, *, rehearsal: bool) -> str:
    """The whole page: how it went side by side, the large differences with their causes, then every row."""
    lost = unknown(rows, causes)
    lines = [
        f"# Differences: {evidence}, emulated, and the article's formulas",
        "",
        "Made by `make gpu-results`; causes are written by hand in `benchmarks/campaign/causes.toml`.  Peaks of",
        "allocated memory in GiB; errors are (said - measured) / measured.  *peak* is the largest phase.",
        *(["", _REHEARSAL] if rehearsal else []),
        "",
        *summary(rows, evidence),
        "",
        f"## Above {LARGE:.1%}",
        "",
        ", ".join(f"{side}: {count} with {UNKNOWN}" for side, count in lost.items()) + ".",
        "",
        "| GPU | case | phase | who | said | measured | error | cause |",
        "|---|---|---|---|--:|--:|--:|---|",
        *(line for side in SIDES for line in _large(rows, side, causes)),
        "",
        "## Every phase",
        "",
        f"| GPU | case | phase | {evidence} | emulated | error | article | error |",
        "|---|---|---|--:|--:|--:|--:|--:|",
        *map(_row, rows),
    ]
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Difference], evidence: str) -> list[str]:
    """A line for each GPU and side: how many peaks, to the byte, within the limit, the median and the worst."""
    lines = [
        f"| GPU | {evidence} | beside | peaks | to the byte | within {LARGE:.1%} | median error | worst |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for gpu in dict.fromkeys(row.gpu for row in rows):
        peaks = [row for row in rows if row.gpu == gpu and row.phase == PEAK]
        lines += [_side(gpu, side, peaks) for side in SIDES]
    return lines


def _side(gpu: str, side: str, peaks: Sequence[Difference]) -> str:
    errors = [error for row in peaks if (error := row.error(side)) is not None]
    if not errors:
        return f"| {gpu} | {len(peaks)} cases | {side} | 0 | - | - | - | - |"
    within = sum(abs(error) <= LARGE for error in errors)
    median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
    exact = sum(error == 0 for error in errors)
    return f"| {gpu} | {len(peaks)} cases | {side} | {len(errors)} | {exact} | {within} | {median:.2%} | {worst:+.1%} |"


def _large(rows: Sequence[Difference], side: str, causes: Sequence[Cause]) -> Iterator[str]:
    for row in rows:
        if row.is_large(side):
            versions = "" if row.same_versions or side != "emulated" else " (other versions)"
            why = _cause(row, side, causes) or UNKNOWN
            yield (
                f"| {row.gpu} | {row.case.label()} | {row.phase} | {side}{versions} | {gib(row.said_bytes[side])} "
                f"| {gib(row.measured_bytes)} | {row.error(side):+.2%} | {why} |"
            )


def _cause(row: Difference, side: str, causes: Sequence[Cause]) -> str | None:
    return cause_of(causes, side, row.case, row.phase, row.gpu)


def _row(row: Difference) -> str:
    measured = gib(row.measured_bytes) if row.status == "ok" else row.status
    cells = []
    for side in SIDES:
        said, error = row.said_bytes.get(side), row.error(side)
        ended = row.emulated_status if side == "emulated" and row.emulated_status not in (None, "ok") else None
        cells += [ended or gib(said), "-" if error is None else f"{error:+.2%}"]
    return f"| {row.gpu} | {row.case.label()} | {row.phase} | {measured} | {' | '.join(cells)} |"


def with_summary(readme: str, rows: Sequence[Difference], evidence: str, counts: Mapping[str, int]) -> str | None:
    """README with the table between its markers; None where it has none."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return None
    lost = ", ".join(f"{count} of the {side}'s" for side, count in counts.items())
    said = f"Differences above {LARGE:.1%} without a cause yet: {lost}."
    return "\n".join([before + begin, *summary(rows, evidence), "", said, end + after])
