"""``nooom baseline``: the only writer of baselines, and their history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks import baselines, gate
from nooom.benchmarks.history import Version, history, phases
from nooom.benchmarks.journal import Entry
from nooom.formulas.errors import UsageError
from nooom.formulas.sizes import size_bytes

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Update:
    """What the command line asked for."""

    results: Sequence[Path]
    suite: str
    to: Path
    band: str | None
    prune: bool
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Log:
    """What the command line asked for."""

    case: str
    where: Path
    as_json: bool


def update(request: Update) -> int:
    """Check the measurements, write the files, and say which; returns the exit code."""
    found = [entry for path in request.results for entry in gate.read_set(path)]
    found = gate.once(found, request.results[0])
    baselines.check(found)
    band = size_bytes(request.band, "--band") if request.band is not None else None
    with baselines.alone(request.to):
        files = baselines.updated(request.to, request.suite, found, band_bytes=band, prune=request.prune)
        baselines.write(request.to, files)
    if request.as_json:
        listed = [
            {"path": str(request.to / one.path), "cases": len(one.records), "added": one.added, "changed": one.changed,
             "dropped": one.dropped}
            for one in files
        ]  # fmt: skip
        print(json.dumps({"schema_version": SCHEMA_VERSION, "files": listed}))
        return 0
    from nooom.benchmarks.reports.console import console as report_console

    console = report_console()
    for one in files:
        said = f"{len(one.records)} cases: {one.added} new, {one.changed} changed, {one.dropped} dropped"
        console.print(f"{request.to / one.path}: {said}", soft_wrap=True)
    return 0


def log(request: Log) -> int:
    """Show the history of the one case that is meant; returns the exit code."""
    entry = _the_one(request)
    versions = history(entry.file, entry.measurement.case_id)
    if request.as_json:
        print(json.dumps(_document(entry, versions)))
        return 0
    from nooom.benchmarks.reports import history as report

    report.show(entry.measurement.label, entry.file, versions)
    return 0


def _the_one(request: Log) -> Entry:
    words = request.case.lower().split()
    if not words:
        raise UsageError("which case? a case_id, or words of its label")
    entries = gate.read_set(request.where)
    meant = [entry for entry in entries if entry.measurement.case_id == request.case]
    meant = meant or [entry for entry in entries if all(word in entry.measurement.label.lower() for word in words)]
    exact = [entry for entry in meant if entry.measurement.label.lower() == request.case.lower()]
    meant = exact or meant
    if not meant:
        raise UsageError(f"{request.where}: no case {request.case[:80]!r} among {len(entries)}")
    if len(meant) > 1:
        some = "; ".join(f"{entry.measurement.case_id} {entry.measurement.label} ({entry.file})" for entry in meant[:5])
        raise UsageError(f"{request.case[:80]!r} may be any of {len(meant)} cases: {some}")
    return meant[0]


def _document(entry: Entry, versions: Sequence[Version]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "case_id": entry.measurement.case_id,
        "case": entry.measurement.label,
        "file": str(entry.file),
        "phases": list(phases(versions)),
        "versions": [
            {
                "commit": one.commit,
                "date": one.date,
                "subject": one.subject,
                "peak_allocated_bytes": None
                if one.record is None
                else {phase.name: phase.peak_allocated_bytes for phase in one.record.phases},
            }
            for one in versions
        ],
    }
