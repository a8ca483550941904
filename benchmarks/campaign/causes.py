"""Why figures differ, as far as somebody has found out: ``causes.toml``, written by hand.

[[cause]]
of = "emulated"             # or "article": whose figure differs from the measured one
why = "..."
phase = ["load", "peak"]    # only of these phases; a phase's name, or a list
workload = "sft"            # and of cases with these flags: a value, or a list of them

The first that fits is a row's cause.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks.campaign.differences import SIDES
from nooom.formulas.case import FLAGS, Case
from nooom.formulas.errors import UsageError, nearest

FILE = Path(__file__).with_name("causes.toml")
UNKNOWN = "cause not yet found"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause, and what it is the cause of."""

    of: str
    why: str
    where: Mapping[str, tuple[Any, ...]]
    """Values by flag, and by ``phase`` and ``gpu``."""

    def fits(self, of: str, case: Case, phase: str, gpu: str) -> bool:
        known = {**case.to_dict(), "phase": phase, "gpu": gpu}
        return of == self.of and all(known[name] in values for name, values in self.where.items())


def load(file: Path = FILE) -> list[Cause]:
    """The causes in their order.  Raises UsageError for what is none, with the file and its number."""
    try:
        listed = tomllib.loads(file.read_text(encoding="utf-8")).get("cause", [])
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error
    return [_cause(item, f"{file}: cause {number}") for number, item in enumerate(listed, 1)]


def _cause(item: Mapping[str, Any], place: str) -> Cause:
    if item.get("of") not in SIDES or not isinstance(item.get("why"), str):
        raise UsageError(f"{place}: needs of ({' or '.join(SIDES)}) and why")
    known = [*FLAGS, "phase", "gpu"]
    where = {name: value for name, value in item.items() if name not in ("of", "why")}
    for name in where:
        if name not in known:
            raise UsageError(f"{place}: unknown key {name!r}; {nearest(name, known)}")
    return Cause(
        of=item["of"],
        why=item["why"],
        where={name: tuple(value) if isinstance(value, list) else (value,) for name, value in where.items()},
    )


def cause_of(causes: Sequence[Cause], of: str, case: Case, phase: str, gpu: str) -> str | None:
    """Why that side differs there; None where nobody has found out."""
    return next((cause.why for cause in causes if cause.fits(of, case, phase, gpu)), None)
