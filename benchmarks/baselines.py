"""Baselines: the measurements that a gate compares with, in git, one case a line.

``FOLDER/<suite>/<gpu>/torch-<minor>.jsonl``, ``<gpu>`` being ``cpu``, ``h100-80gb`` or ``h100-80gb-emulated``.  A line
is a measurement's record, keys sorted, without what differs from run to run (times, the sampler, the warm-up), so that
a pull request shows a change of memory and nothing else.  ``nooom baseline update`` is the only writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.benchmarks import gate
from nooom.benchmarks.journal import Entry, canonical, entries_of
from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import file_name
from nooom.profiler import regression
from nooom.profiler.measurement import Measurement

Key = tuple[str, gate.Group]
FOLDER = Path("results/baselines")
_OF_THE_RUN = {"wall_s", "gpu_uuid", "gpu_index", "profiler", "scratch", "attribution", "invented_answers"}
"""What a fingerprint says of the run and not of what was run."""
_A_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Updated:
    """One baseline file, as it is to be."""

    path: Path
    """Below the baselines' folder."""
    records: tuple[Measurement, ...]
    before: Mapping[Key, Measurement]
    """What it is now, by :func:`gate.key`."""

    @property
    def added(self) -> int:
        """Cases that are new in it."""
        return sum(gate.key(record) not in self.before for record in self.records)

    @property
    def changed(self) -> int:
        """Cases whose line differs."""
        pairs = [(self.before[gate.key(one)], one) for one in self.records if gate.key(one) in self.before]
        return sum(old is not new and canonical(old) != canonical(new) for old, new in pairs)

    @property
    def dropped(self) -> int:
        """Cases that it has no more."""
        return len(self.before.keys() - set(map(gate.key, self.records)))

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in sorted(canonical(record) for record in self.records))


def path_of(suite: str, record: Measurement) -> Path:
    """Where a record's baseline stands below the folder.

    Raises:
        UsageError: a suite's name that is no plain file name.
    """
    if not _A_NAME.fullmatch(suite):
        raise UsageError(f"a baseline's suite is named in letters, digits, dots and dashes, not {suite[:60]!r}")
    minor = regression.minor(record.fingerprint.get("torch")) or ""
    return Path(suite) / _machine(record) / f"torch-{minor if _A_NAME.fullmatch(minor) else 'unknown'}.jsonl"


def suite_for(suite: str | None, file: Path | None) -> str:
    """What a proposed baseline's suite is called: as the one that was run, or as the file that was compared with.

    Args:
        suite: a suite's name or file, where one was named.
        file: a baseline; where it stands as ``<suite>/<gpu>/torch-<minor>.jsonl``, it tells.
    """
    parts = () if file is None else _parts(file)
    told = parts[-3] if len(parts) > 3 and re.fullmatch(r"torch-.+\.jsonl", parts[-1]) else ""
    name = Path(suite).stem if suite is not None else told
    return name if _A_NAME.fullmatch(name) else "suite"


def _machine(record: Measurement) -> str:
    named = record.gpu or {}
    if not isinstance(named.get("name"), str):
        name = record.device
    else:
        total = named.get("total_bytes")
        name = file_name(named["name"], total if isinstance(total, int) else None) or "unknown-gpu"
    return name if record.source == "measured" else f"{name}-{record.source}"


def line_of(record: Measurement, band_bytes: int | None = None) -> Measurement:
    """A record as a baseline keeps it."""
    return dataclasses.replace(
        record,
        phases=[dataclasses.replace(phase, seconds=None, rss_peak_bytes=None) for phase in record.phases],
        first=None,
        sampling=None,
        fingerprint={name: value for name, value in record.fingerprint.items() if name not in _OF_THE_RUN},
        band_bytes=record.band_bytes if band_bytes is None else band_bytes,
    )


def check(entries: Iterable[Entry]) -> None:
    """Whether measurements may become a baseline.

    Raises:
        UsageError: one that failed or ran out of memory, has no peak, or was made from a tree with changes that no
            commit has.
    """
    for entry in entries:
        record = entry.measurement
        if record.status != "ok":
            raise UsageError(f"{entry.place}: {record.label} ended as {record.status}: no baseline")
        if record.peak_allocated_bytes is None:
            raise UsageError(f"{entry.place}: {record.label} has no peak: nothing could ever grow beside it")
        if record.fingerprint.get("dirty"):
            raise UsageError(
                f"{entry.place}: {record.label} was measured in a tree with uncommitted changes, which nobody can "
                "measure again: commit, measure, update"
            )


def updated(
    folder: Path, suite: str, entries: Sequence[Entry], *, band_bytes: int | None = None, prune: bool = False
) -> list[Updated]:
    """The files of a suite with these measurements in place of what they had of the same cases; nothing is written.

    Args:
        folder: where baselines lie.
        suite: whose cases they are.
        entries: measurements, each case once.
        band_bytes: to be stored with them; None keeps what a case had.
        prune: drop the cases that the measurements have not.

    Raises:
        UsageError: a baseline that is there and can't be read, or a suite's name that is none.
    """
    by_path: dict[Path, list[Measurement]] = {}
    for entry in entries:
        by_path.setdefault(path_of(suite, entry.measurement), []).append(entry.measurement)
    return [_merged(folder, path, records, band_bytes, prune) for path, records in sorted(by_path.items())]


def _merged(folder: Path, path: Path, records: Sequence[Measurement], band_bytes: int | None, prune: bool) -> Updated:
    known = _known(folder / path)
    fresh: dict[Key, Measurement] = {}
    for record in records:
        before = known.get(gate.key(record))
        kept = before.band_bytes if band_bytes is None and before is not None else band_bytes
        fresh[gate.key(record)] = line_of(record, kept)
    rest = {} if prune else {which: record for which, record in known.items() if which not in fresh}
    return Updated(path=path, records=(*rest.values(), *fresh.values()), before=known)


def _known(file: Path) -> Mapping[Key, Measurement]:
    if not file.exists():
        return {}
    found = gate.once(list(entries_of(file, torn=False)), file)
    return {gate.key(entry.measurement): entry.measurement for entry in found}


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds the folder: what another update wrote meanwhile would be lost.

    Raises:
        UsageError: a folder that can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from error
    try:
        with contextlib.suppress(ImportError, OSError):  # Windows, or a file system without locks
            import fcntl

            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def write(folder: Path, files: Iterable[Updated]) -> None:
    """Put the files in place, each whole or not at all.

    Raises:
        UsageError: a folder that can't be written to.
    """
    for one in files:
        target = folder / one.path
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(one.text, encoding="utf-8")
            os.replace(aside, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise UsageError(f"{target}: can't be written: {error.strerror}") from error


def proposed(baseline: Sequence[Entry], current: Sequence[Measurement], suite: str) -> list[Updated]:
    """What the baselines would be if the current figures were accepted: for a reviewer, beside every report.

    Cases that failed keep the line they had; a case that has none yet joins the file of its suite and machine.

    Args:
        baseline: what was compared with, and where it stands.
        current: what was measured.
        suite: whose cases are those that no file has.
    """
    at: dict[Key, Path] = {}
    lines: dict[Path, dict[Key, Measurement]] = {}
    for entry in baseline:
        record = entry.measurement
        path = _in_place(entry.file, suite, record)
        at[gate.key(record)] = path
        lines.setdefault(path, {})[gate.key(record)] = record
    before = {path: dict(known) for path, known in lines.items()}
    for record in current:
        if record.status != "ok":
            continue
        path = at.get(gate.key(record)) or path_of(suite, record)
        kept = lines.setdefault(path, {}).get(gate.key(record))
        lines[path][gate.key(record)] = line_of(record, kept.band_bytes if kept is not None else None)
    return [
        Updated(path=path, records=tuple(after.values()), before=before.get(path, {}))
        for path, after in sorted(lines.items())
    ]


def _in_place(file: Path, suite: str, record: Measurement) -> Path:
    """Where a baseline stands below its folder; one that lies elsewhere is named as it should be."""
    named, parts = path_of(suite, record), _parts(file)
    return Path(*parts[-3:]) if parts[-2:] == named.parts[-2:] and len(parts) > 3 else named


@functools.cache
def _parts(file: Path) -> tuple[str, ...]:
    return file.resolve().parts
