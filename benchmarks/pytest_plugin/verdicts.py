"""A measured test against what its marks ask: what the summary says of it, and why it fails if it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.benchmarks import gate
from nooom.benchmarks.pytest_plugin.marks import Baseline, Limit
from nooom.benchmarks.pytest_plugin.rows import NEW, NOT_COMPARABLE, OVER, UNKNOWN, change, size
from nooom.profiler import regression
from nooom.profiler.measurement import Measurement, Phase

_FIGURE = {"allocated": "max_memory_allocated", "reserved": "max_memory_reserved"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Of one mark."""

    state: str
    against: str
    notes: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()
    """The lines of a failing test; empty where it passes."""
    phase: str | None = None
    """The one that a failure is about, whose tensors are of interest."""


def evidence(record: Measurement) -> str:
    """``measured on cpu``, ``emulated on phantom NVIDIA A100-SXM4-80GB``."""
    name = (record.gpu or {}).get("name")
    return f"{record.source} on {record.device}" + (f" {name}" if name else "")


def highest(record: Measurement, metric: str = "allocated") -> Phase | None:
    """The phase with the highest peak; None where no peak is known."""
    name = f"peak_{metric}_bytes"
    known = [phase for phase in record.phases if getattr(phase, name) is not None]
    return max(known, key=lambda phase: int(getattr(phase, name)), default=None)


def of_limit(limit: Limit, record: Measurement) -> Verdict:
    """Whether a test stayed within its limit."""
    against = f"limit {size(limit.limit_bytes)}" + (" reserved" if limit.metric == "reserved" else "")
    phase = highest(record, limit.metric)
    if phase is None:
        why = record.fingerprint.get("lost") or "the device does not tell"
        wrong = f"the limit can't be held, the {limit.metric} peak is unknown ({evidence(record)}): {why}"
        return Verdict(state=UNKNOWN, against=against, failure=(wrong,))
    peak = int(getattr(phase, f"peak_{limit.metric}_bytes"))
    over = peak - limit.limit_bytes
    if over <= 0:
        return Verdict(state=regression.PASS, against=against)
    share = f" ({over / limit.limit_bytes:.1%})" if limit.limit_bytes else ""
    where = f", in phase {phase.name}" if len(record.phases) > 1 else ""
    return Verdict(
        state=OVER,
        against=against,
        phase=phase.name,
        failure=(
            f"peak {size(peak)}, limit {size(limit.limit_bytes)}: {size(over)}{share} over, {evidence(record)}{where}",
            f"{_FIGURE[limit.metric]} {peak:,} bytes, limit {limit.limit_bytes:,} bytes",
        ),
    )


def of_baseline(
    mark: Baseline, record: Measurement, known: Sequence[Measurement], path: Path, *, strict: bool
) -> Verdict:
    """Whether a test's peaks have grown since its baseline.

    Args:
        mark: with a band of its own, perhaps.
        record: of the test.
        known: every line of the baseline.
        path: where they stand, as a message names it.
        strict: nothing to compare with is a failure.
    """
    alike = [line for line in known if line.case_id == record.case_id]
    if not alike:
        return _undecided(NEW, f"no line of this test in {path}", strict=strict)
    of = gate.group(record)
    before = next((line for line in alike if gate.group(line) == of), alike[0])
    if mark.band_bytes is not None:
        before = dataclasses.replace(before, band_bytes=mark.band_bytes)
    if different := regression.hard_differences(before, record):
        return _undecided(
            NOT_COMPARABLE, f"not comparable with its line in {path}: {'; '.join(different)}", strict=strict
        )
    if before.status != "ok":
        return _undecided(NOT_COMPARABLE, f"its line in {path} ended as {before.status}", strict=strict)
    return _compared(before, record, path, strict=strict)


def _undecided(state: str, note: str, *, strict: bool) -> Verdict:
    return Verdict(state=state, against="", notes=(note,), failure=(f"{note} (--gpu-memory-strict)",) if strict else ())


def _compared(before: Measurement, record: Measurement, path: Path, *, strict: bool) -> Verdict:
    found = regression.changes(before, record)
    states = [one.state for one in found]
    worst = next(state for state in _WORST_FIRST if state in states) if states else regression.SKIPPED
    notes = [_line(one) for one in found if one.state not in (regression.PASS, regression.MISSING)]
    grown = [one for one in found if one.state == regression.REGRESSION]
    most = max(grown, key=lambda one: one.change_bytes or 0, default=None)
    failure: list[str] = []
    if worst in (regression.REGRESSION, regression.MISSING):
        since = f"its baseline in {path}, {evidence(record)}:"
        failure = [f"other phases than {since}" if most is None else f"{_moved(most)} since {since}"]
        for one in found:
            failure.append(f"  {_line(one)}")
            failure += [f"    {_more(part)}" for part in one.grew]
        if differs := regression.suspects(before, record):
            failure.append(f"what else differs: {'; '.join(differs)}")
    elif worst == regression.SKIPPED and strict:
        failure = ["a peak is unknown on one side (--gpu-memory-strict)"]
    return Verdict(
        state=worst,
        against=f"baseline {size(before.peak_allocated_bytes)}",
        notes=tuple(notes),
        failure=tuple(failure),
        phase=most.phase if most is not None else None,
    )


_WORST_FIRST = (
    regression.REGRESSION, regression.MISSING, regression.SKIPPED, regression.IMPROVEMENT, regression.NEW,
    regression.PASS,
)  # fmt: skip


def _more(part: regression.Grown) -> str:
    """``+8.00 MiB  tensor logits float32 [8, 1000]``."""
    return f"{change(part.change_bytes, None)}  {part.kind} {part.name}"


def _line(one: regression.Change) -> str:
    if one.state == regression.MISSING:
        return f"{one.phase}: in the baseline ({size(one.baseline_bytes)}), and not in this test"
    if one.state == regression.NEW:
        return f"{one.phase}: {size(one.current_bytes)}, a phase that the baseline has not"
    if one.change_bytes is None:
        return f"{one.phase}: its peak is unknown on one side"
    return (
        f"{one.phase}: {size(one.baseline_bytes)} -> {size(one.current_bytes)}, {_moved(one)}, "
        f"{one.state} (band {size(one.band_bytes)})"
    )


def _moved(one: regression.Change) -> str:
    return change(one.change_bytes or 0, one.baseline_bytes)
