"""The article's claims as data: what it asserts that can be right or wrong, where, and by which check it is tested.

``claims.toml`` beside this file has them in the order of the text and says what each key means.  What a claim is worth
is decided elsewhere, from formulas and measurements.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nooom.formulas.errors import UsageError, nearest

KINDS = ("number", "scaling", "default", "feasibility", "source", "time")
SIZES = {"GB": 10**9, "GiB": 1 << 30, "TB": 10**12}
"""Units that are sizes, in bytes: a claim in one of them is a printed, rounded figure."""

_FILE = Path(__file__).with_name("claims.toml")
_TEXT = ("id", "section", "kind", "says", "check")
_KNOWN = frozenset({*_TEXT, "line", "claimed", "unit", "with"})


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One assertion of the article."""

    id: str
    line: int
    """Of the article's text, counted from its title."""
    section: str
    kind: str
    says: str
    check: str
    """The name of the function that tests it."""
    claimed: float | tuple[float, float] | None = None
    """The figure in ``unit``, or the two ends of "5-10x"; None where the claim has none."""
    unit: str | None = None
    digits: int = 0
    """Decimal places that the figure is written with."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the check is told: a model, a batch, the ids of measurements."""

    @property
    def rounding(self) -> float:
        """How far the truth may lie from a printed size, in its unit; 0 for everything that is no size."""
        return 0.5 * 10.0**-self.digits if self.unit in SIZES else 0.0


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the text."""
    return parse(_FILE.read_text(encoding="utf-8"), _FILE.name)


def parse(text: str, where: str) -> tuple[Claim, ...]:
    """The claims of a file.

    Raises:
        UsageError: no TOML, an unknown or missing key, a value of another type, an id that stands there twice, an
            unknown kind, a line outside the text or above the claim before it; with the claim's id.
    """
    try:
        content = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from error
    last, entries = content.get("lines"), content.get("claim")
    if not isinstance(last, int) or not isinstance(entries, list):
        raise UsageError(f"{where}: lines, a number, and [[claim]] tables are right")
    found: list[Claim] = []
    for number, entry in enumerate(entries, 1):
        name = entry.get("id") if isinstance(entry, dict) else None
        claim = _claim(entry, f"{where}: {name if isinstance(name, str) else f'claim {number}'}")
        _in_order(claim, found, last, where)
        found.append(claim)
    return tuple(found)


def _claim(entry: Any, place: str) -> Claim:
    if not isinstance(entry, dict):
        raise UsageError(f"{place}: a table is right")
    for key in entry:
        if key not in _KNOWN:
            raise UsageError(f"{place}: key {key!r} is unknown; {nearest(key, _KNOWN)}")
    for key in _TEXT:
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise UsageError(f"{place}: {key} is missing; text is right")
    if entry["kind"] not in KINDS:
        raise UsageError(f"{place}: kind {entry['kind']!r} is unknown; {nearest(entry['kind'], KINDS)}")
    if not isinstance(entry.get("line"), int):
        raise UsageError(f"{place}: line is missing; a number is right")
    parameters = entry.get("with", {})
    if not isinstance(parameters, dict):
        raise UsageError(f"{place}: with must be a table")
    claimed, digits = _figures(entry, place)
    return Claim(
        **{key: entry[key] for key in _TEXT},
        line=entry["line"],
        claimed=claimed,
        unit=entry.get("unit"),
        digits=digits,
        parameters=MappingProxyType(parameters),
    )


def _figures(entry: Mapping[str, Any], place: str) -> tuple[float | tuple[float, float] | None, int]:
    """What is claimed, and with how many decimal places it is written."""
    value = entry.get("claimed")
    if value is None:
        return None, 0
    if not isinstance(entry.get("unit"), str):
        raise UsageError(f"{place}: claimed has no unit")
    values: Sequence[Any] = value if isinstance(value, list) else [value]
    if len(values) not in (1, 2) or any(isinstance(v, bool) or not isinstance(v, (int, Decimal)) for v in values):
        raise UsageError(f"{place}: claimed must be a number or two")
    digits = max(-int(Decimal(v).as_tuple().exponent) for v in values)
    numbers = [float(v) for v in values]
    return ((numbers[0], numbers[1]) if isinstance(value, list) and len(values) == 2 else numbers[0]), digits


def _in_order(claim: Claim, before: Sequence[Claim], last: int, where: str) -> None:
    place = f"{where}: {claim.id}"
    if any(claim.id == other.id for other in before):
        raise UsageError(f"{place}: the id stands there twice")
    if not 1 <= claim.line <= last:
        raise UsageError(f"{place}: line {claim.line} is outside the text; 1 to {last} is right")
    if before and claim.line < before[-1].line:
        raise UsageError(f"{place}: line {claim.line} comes before {before[-1].id}'s; the text's order is right")
