"""The vocabulary of verdicts, and the rules by which two numbers become one of its words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nooom.formulas.claims import Claim

HOLDS, ROUGHLY = "holds", "roughly"
OFF_BY = "off by"
"""Followed by how many times: ``off by 1.8x``."""
WRONG_SHAPE, UNIT_MIX, MISQUOTED = "wrong shape", "unit mix", "misquoted"
RECIPE, VERSION = "recipe-dependent", "version-dependent"
NOT_TESTED = "not tested"

WORDS = (HOLDS, ROUGHLY, OFF_BY, WRONG_SHAPE, UNIT_MIX, MISQUOTED, RECIPE, VERSION, NOT_TESTED)
BROKEN = (OFF_BY, WRONG_SHAPE, UNIT_MIX, MISQUOTED)

CLOSE, NEAR = 0.01, 0.15
"""How far a figure may lie from the claimed one and the claim still holds, or roughly holds."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found out about a claim."""

    word: str
    why: str
    found: float | None = None
    """In the claim's unit; of several, the one that the word is about."""
    evidence: tuple[str, ...] = ()
    """Formulas, ids of measurements, files: what it was computed from."""


def off_by(claimed: float, found: float) -> str:
    """``off by 1.8x``, whichever of the two is larger; ``off by over 1000x`` where one of them is 0."""
    factor = max(claimed / found, found / claimed) if claimed > 0 and found > 0 else float("inf")
    if factor > 1000:
        return f"{OFF_BY} over 1000x"
    return f"{OFF_BY} {factor:.1f}x" if factor < 9.95 else f"{OFF_BY} {factor:.0f}x"


def group(word: str) -> str:
    """The word of the vocabulary, without how many times it is off."""
    return OFF_BY if word.startswith(OFF_BY) else word


def judged(claim: Claim, found: float | Iterable[float]) -> tuple[str, float]:
    """The word for a claim and what was found in its unit, and the figure that decides.

    Several figures are ordinary recipes.  All close: holds.  All near: roughly.  Some near, or some on either side:
    recipe-dependent, which the farthest figure shows.  All off on the same side: off by the nearest one.
    """
    figures = sorted(found) if isinstance(found, Iterable) else [found]
    if isinstance(claim.claimed, tuple):
        low, high = claim.claimed
    elif claim.claimed is not None:
        low = high = claim.claimed
    else:
        raise ValueError(f"{claim.id}: nothing claimed that a figure could be held against")
    aims = [min(max(figure, low), high) for figure in figures]
    errors = [_error(aim, figure, claim.rounding) for aim, figure in zip(aims, figures, strict=True)]
    worst = max(range(len(figures)), key=errors.__getitem__)
    best = min(range(len(figures)), key=errors.__getitem__)
    if errors[worst] <= NEAR:
        return (HOLDS if errors[worst] <= CLOSE else ROUGHLY), figures[worst]
    if errors[best] <= NEAR or figures[0] < low <= high < figures[-1]:
        return RECIPE, figures[worst]
    return off_by(aims[best], figures[best]), figures[best]


def _error(claimed: float, found: float, rounding: float) -> float:
    """The relative error; 0 where rounding explains it."""
    if abs(found - claimed) <= rounding:
        return 0.0
    return abs(found / claimed - 1) if claimed else float("inf")


def fitting(needs: Mapping[str, float], room_bytes: float, fits: bool) -> str:
    """The word for "it fits", or "it does not", when each recipe needs so many bytes."""
    answers = {need <= room_bytes for need in needs.values()}
    if answers == {fits}:
        return HOLDS
    if len(answers) == 2:
        return RECIPE
    need = min(needs.values()) if fits else max(needs.values())
    ratio = max(need / room_bytes, room_bytes / need)
    return ROUGHLY if ratio - 1 <= NEAR else off_by(need, room_bytes)


def yes(true: bool, ratio: float) -> str:
    """The word for a claim without a figure; where it is not true, ``ratio`` says by how much."""
    return HOLDS if true else off_by(1, ratio)


def gb(size_bytes: float) -> str:
    """10^9 bytes."""
    return f"{size_bytes / 1e9:,.1f} GB"


def gib(size_bytes: float) -> str:
    """2^30 bytes, to four digits."""
    return f"{size_bytes / (1 << 30):,.4g} GiB"


def span(figures: Iterable[float], digits: int = 2) -> str:
    """``0.61`` or ``0.61 to 1.22``."""
    ordered = sorted(figures)
    return " to ".join(dict.fromkeys(f"{figure:,.{digits}f}" for figure in (ordered[0], ordered[-1])))
