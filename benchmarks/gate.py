"""The gate: two sets of measurements, case by case -> a state for each phase, and what stands behind it.

A case is compared with its baseline of the same evidence, GPU model and minor version of torch.  A baseline's case of a
GPU that the current set has nothing of is ``skipped``; one that is compared with nothing else is ``missing``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nooom.benchmarks.journal import FILE_NAME, Entry, entries_of
from nooom.formulas.errors import UsageError
from nooom.profiler import regression
from nooom.profiler.measurement import Measurement, evidence
from nooom.profiler.regression import Change, Grown

SCHEMA_VERSION = 1
STATES = (
    "regression", "oom", "error", "missing", "not_comparable", "skipped", "new", "fixed", "improvement", "pass",
)  # fmt: skip
"""Worst first."""
FAILED = ("regression", "oom", "error", "missing")
UNDECIDED = ("not_comparable", "skipped")
COMPARED = ("regression", "oom", "error", "missing", "fixed", "improvement", "pass")
"""States that say something of a change; with none of them nothing was compared."""


class Group(NamedTuple):
    """What the measurements of one machine share: figures of two groups are never compared."""

    evidence: str
    gpu: str | None
    torch: str | None

    def __str__(self) -> str:
        """``emulated on phantom, NVIDIA A100-SXM4-80GB, torch 2.13``."""
        parts = [self.evidence, *([self.gpu] if self.gpu else []), f"torch {self.torch or 'unknown'}"]
        return ", ".join(parts)


def group(record: Measurement) -> Group:
    gpu = (record.gpu or {}).get("name")
    torch = regression.minor(record.fingerprint.get("torch"))
    return Group(evidence(record.source, record.device), gpu if isinstance(gpu, str) else None, torch)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One phase of one case, or a whole case (``phase`` is None) that can't be told apart by phases."""

    case_id: str
    label: str
    phase: str | None
    state: str
    group: Group
    side: str | None = None
    """Whose current figures these are, where a baseline is held against several environments."""
    baseline_bytes: int | None = None
    current_bytes: int | None = None
    change_bytes: int | None = None
    change_ratio: float | None = None
    band_bytes: int | None = None
    reserved: tuple[int | None, int | None] = (None, None)
    nvml: tuple[int | None, int | None] = (None, None)
    grew: tuple[Grown, ...] = ()
    suspects: tuple[str, ...] = ()
    note: str | None = None
    """What a reader has to know besides: why it can't be compared, what an error said."""

    def to_json(self) -> dict[str, Any]:
        """What ``check --json`` and ``report.json`` say of it."""
        return {
            "case_id": self.case_id,
            "case": self.label,
            "phase": self.phase,
            "state": self.state,
            "evidence": self.group.evidence,
            "gpu": self.group.gpu,
            "torch": self.group.torch,
            "side": self.side,
            **{name: getattr(self, name) for name in _FIGURES},
            "baseline_reserved_bytes": self.reserved[0],
            "current_reserved_bytes": self.reserved[1],
            "baseline_nvml_bytes": self.nvml[0],
            "current_nvml_bytes": self.nvml[1],
            "grew": [one.to_json() for one in self.grew],
            "suspects": list(self.suspects),
            "note": self.note,
        }


_FIGURES = ("baseline_bytes", "current_bytes", "change_bytes", "change_ratio", "band_bytes")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one check found; rows stand worst first."""

    rows: tuple[Row, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by state, every state named."""
        found = Counter(row.state for row in self.rows)
        return {state: found[state] for state in STATES}

    @property
    def cases(self) -> dict[str, int]:
        """Cases by the worst state among their phases."""
        worst: dict[tuple[str, Group, str | None], str] = {}
        for row in self.rows:
            of = (row.case_id, row.group, row.side)
            worst[of] = min(worst.get(of, STATES[-1]), row.state, key=STATES.index)
        found = Counter(worst.values())
        return {state: found[state] for state in STATES}

    def exit_code(self, *, strict: bool = False) -> int:
        """0 fine, 1 where something grew, failed or is missing (``strict``: or is undecided), 3 nothing compared."""
        states = {row.state for row in self.rows}
        if states & set(FAILED) or (strict and states & set(UNDECIDED)):
            return 1
        return 0 if states & set(COMPARED) else 3

    def to_json(self) -> dict[str, Any]:
        """The canonical document: nothing in it depends on when or where it was made."""
        return {
            "schema_version": SCHEMA_VERSION,
            "metric": "max_memory_allocated",
            "counts": self.counts,
            "cases": self.cases,
            "rows": [row.to_json() for row in self.rows],
        }


def key(record: Measurement) -> tuple[str, Group]:
    """By which a record is found in a set: a case may have been measured on several GPUs."""
    return record.case_id, group(record)


def read_set(path: Path) -> list[Entry]:
    """The measurements of a file, or of a folder: its journals, or its baselines (``*.jsonl``).

    Raises:
        UsageError: nothing there, a folder that can't be looked into or that has both kinds, a torn or invalid line,
            or a case that stands there twice, with file and line.
    """
    files = [path] if path.is_file() else _files(path)
    journals = [file for file in files if file.name == FILE_NAME]
    kept = [file for file in files if re.fullmatch(r"torch-.+\.jsonl", file.name)]
    if journals and kept and not path.is_file():
        raise UsageError(f"{path}: has measurements ({journals[0]}) and baselines ({kept[0]}); name one of the two")
    files = journals or files
    if not files:
        what = "no measurements (*.jsonl) in it or under it" if path.is_dir() else "no such file or folder"
        raise UsageError(f"{path}: {what}")
    return once([entry for file in files for entry in entries_of(file, torn=False)], path)


def _files(folder: Path) -> list[Path]:
    """Every ``*.jsonl`` under a folder; what can't be looked into is an error, for it may hold half of a set."""
    found = []

    def refuse(error: OSError) -> None:
        if folder.is_dir():
            raise UsageError(f"{error.filename}: {error.strerror}") from error

    for where, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            file = Path(where) / name
            if file.suffix == ".jsonl" and (file.is_file() or file.is_symlink()):
                if not file.is_file():
                    raise UsageError(f"{file}: a link to no file")
                found.append(file)
    return sorted(found)


def once(entries: Sequence[Entry], path: Path) -> list[Entry]:
    """The entries, one for each case of a group: a case that was run again after it had failed counts as it ended.

    Raises:
        UsageError: no entries; two that finished, of which nobody can know which one is meant.
    """
    if not entries:
        raise UsageError(f"{path}: no measurements in it")
    found: dict[tuple[str, Group], Entry] = {}
    for entry in entries:
        _check_phases(entry)
        which = key(entry.measurement)
        known = found.get(which)
        if known is not None and known.measurement.status in ("ok", "oom"):
            raise UsageError(
                f"{entry.place}: {entry.measurement.label} is measured a second time, the first stands at "
                f"{known.place}; a set has each case once: name one suite or run of the two, or the file"
            )
        found[which] = entry
    return list(found.values())


def _check_phases(entry: Entry) -> None:
    names = [phase.name for phase in entry.measurement.phases]
    for name in names:
        if not name.isprintable() or names.count(name) > 1:
            wrong = "stands there twice" if name.isprintable() else "is not printable"
            raise UsageError(f"{entry.place}: phase {ascii(name)[:60]} {wrong}")


def compare(baseline: Iterable[Measurement], current: Iterable[Measurement], *, side: str | None = None) -> Report:
    """Hold a set against its baseline.

    Args:
        baseline: one record a case and group.
        current: as well.
        side: a name for the current set, where there are several.
    """
    known = {key(record): record for record in baseline}
    others: dict[str, Measurement] = {}
    alike: dict[str, Measurement] = {}
    for (case_id, _), record in known.items():
        others.setdefault(case_id, record)
        alike.setdefault(_twin_key(record), record)
    rows: list[Row] = []
    groups, met = set(), set()
    for record in current:
        of = group(record)
        groups.add(of)
        before = known.get((record.case_id, of))
        if before is None:
            before = others.get(record.case_id) or alike.get(_twin_key(record))
        if before is not None:
            met.add(key(before))
        rows += _compared(before, record, of, side)
    left = [(record, of) for (case_id, of), record in known.items() if (case_id, of) not in met]
    return report(rows + [_unmet(record, of, groups, side) for record, of in left])


def report(rows: Iterable[Row]) -> Report:
    """Rows in the order of a report: worst first, then what grew most, then by name."""
    return Report(rows=tuple(sorted(rows, key=_rank)))


def _rank(row: Row) -> tuple[Any, ...]:
    which = (row.label, row.case_id, str(row.group), row.side or "", row.phase or "")
    return STATES.index(row.state), -(row.change_bytes or 0), which


def _twin_key(record: Measurement) -> str:
    """The same for cases that only their allocator's settings, or their version, tell apart."""
    if record.is_own_code:
        return record.label
    return repr(sorted((name, value) for name, value in record.case.items() if name != "allocator"))


def _compared(before: Measurement | None, after: Measurement, of: Group, side: str | None) -> Iterator[Row]:
    whole = _whole(after, of, side)
    if before is None:
        state = {"ok": "new", "oom": "oom"}.get(after.status, "error")
        yield dataclasses.replace(whole, state=state, note=_said(after), current_bytes=after.peak_allocated_bytes)
        return
    if different := regression.hard_differences(before, after):
        yield dataclasses.replace(whole, state="not_comparable", note="; ".join(different))
        return
    suspects = tuple(regression.suspects(before, after)) if before.fingerprint != after.fingerprint else ()
    ended = _ended(before, after)
    if ended is not None:
        now = after.peak_allocated_bytes if ended == "fixed" else None
        note = _said(before if ended == "fixed" else after)
        yield dataclasses.replace(whole, state=ended, note=note, suspects=suspects, current_bytes=now)
        return
    for change in regression.changes(before, after):
        yield _row(whole, change, suspects)


def _ended(before: Measurement, after: Measurement) -> str | None:
    """Of the case as a whole, where one side did not finish; None where the phases tell."""
    if after.status == "ok":
        return None if before.status == "ok" else "fixed"
    if after.status != "oom":
        return "error"
    if before.status != "oom":
        return "oom"
    # What ran out of memory before has become worse where it does so in a phase that was over by then.
    then, now = (before.error or {}).get("phase"), (after.error or {}).get("phase")
    return "oom" if now != then and now in {phase.name for phase in before.phases} else "pass"


def _said(record: Measurement) -> str | None:
    if record.status == "ok":
        return None
    error = record.error or {}
    where = f" in {error['phase']}" if error.get("phase") else ""
    return f"{record.status}{where}: {' '.join(str(error.get('message')).split())[:300]}"


def _whole(record: Measurement, of: Group, side: str | None) -> Row:
    return Row(case_id=record.case_id, label=record.label, phase=None, state="error", group=of, side=side)


def _row(whole: Row, change: Change, suspects: tuple[str, ...]) -> Row:
    moved = change.state in (regression.REGRESSION, regression.IMPROVEMENT)
    return Row(
        case_id=whole.case_id,
        label=whole.label,
        phase=change.phase,
        state=change.state,
        group=whole.group,
        side=whole.side,
        baseline_bytes=change.baseline_bytes,
        current_bytes=change.current_bytes,
        change_bytes=change.change_bytes,
        change_ratio=change.change_ratio,
        band_bytes=change.band_bytes,
        reserved=change.reserved,
        nvml=change.nvml,
        grew=change.grew if moved else (),
        suspects=suspects if moved else (),
        note="its peak is unknown on one side" if change.state == regression.SKIPPED else None,
    )


def _unmet(record: Measurement, of: Group, groups: set[Group], side: str | None) -> Row:
    """A baseline's case that the current set has not."""
    row = dataclasses.replace(_whole(record, of, side), baseline_bytes=record.peak_allocated_bytes)
    if of in groups:
        return dataclasses.replace(row, state="missing", note="the current set does not have it")
    return dataclasses.replace(row, state="skipped", note=f"the current set has nothing {of}")


def worst(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The rows by state, worst first, each in the report's order."""
    return {state: [row for row in rows if row.state == state] for state in STATES}
