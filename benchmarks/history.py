"""What git remembers of a case's baseline: its figures in every commit that changed its file."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.formulas.errors import NooomError, UsageError
from nooom.profiler.measurement import Measurement

_LIMIT_S = 60


@dataclass(frozen=True, kw_only=True)
class Version:
    """A case's baseline as one commit left it."""

    commit: str
    date: str
    """When it was committed, ISO 8601."""
    subject: str
    record: Measurement | None
    """None where that commit took the case out, or where its line was none of today's schema."""


def history(file: Path, case_id: str, *, most: int = 50) -> list[Version]:
    """The versions of a case's line, oldest first; commits that left it as it was are passed over.

    Args:
        file: the baseline, in a git checkout.
        case_id: of the case.
        most: how many commits of the file are looked at, from the newest.

    Raises:
        UsageError: no git checkout, or a file that git does not know.
    """
    folder = file.resolve().parent
    form = ("--no-show-signature", "-z", "--format=%H%x09%cI%x09%s")
    listed = _git(folder, "log", f"-{most}", *form, "--", file.name)
    if not listed.strip():
        raise UsageError(f"{file}: git knows no version of it: commit it first")
    found: list[Version] = []
    for line in reversed(listed.strip("\0").split("\0")):
        commit, date, subject = line.split("\t", 2)
        record = _record(_at(folder, commit, file.name), case_id)
        if found and _figures(found[-1].record) == _figures(record):
            continue
        if found or record is not None:
            found.append(Version(commit=commit, date=date, subject=subject, record=record))
    return found


def _at(folder: Path, commit: str, name: str) -> str:
    try:
        return _git(folder, "show", f"{commit}:./{name}")
    except UsageError:  # that commit deleted it
        return ""


def _record(text: str, case_id: str) -> Measurement | None:
    for line in text.split("\n"):
        if case_id in line:
            try:
                record = Measurement.from_json(json.loads(line))
            except (ValueError, RecursionError, NooomError):
                continue
            if record.case_id == case_id:
                return record
    return None


def _figures(record: Measurement | None) -> Sequence[tuple[str, int | None]] | None:
    return None if record is None else [(phase.name, phase.peak_allocated_bytes) for phase in record.phases]


def phases(versions: Sequence[Version]) -> Iterator[str]:
    """The phases of all versions, in their order."""
    seen = dict.fromkeys(phase.name for one in versions if one.record is not None for phase in one.record.phases)
    yield from seen


def _git(folder: Path, *arguments: str) -> str:
    # A hook's GIT_DIR would answer for somebody else's checkout.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--literal-pathspecs", "-C", str(folder), *arguments],
            capture_output=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{folder}: git does not answer: {error}") from error
    if done.returncode:
        raise UsageError(f"{folder}: git: {' '.join(done.stderr.decode(errors='replace').split())[:200]}")
    return done.stdout.decode("utf-8", errors="replace")
