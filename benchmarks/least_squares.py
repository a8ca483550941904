"""Least squares that says what the rows can't tell: parallel columns, dependent columns, too few rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

PARALLEL = 1e-6
"""Columns at a smaller angle (in radians) say the same: a formula's rounding to whole bytes tilts them by 1e-9."""
ROUNDING = 1e-12
"""A relative error this small is the arithmetic's own, and differs from one processor to another: the fit is exact."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One thing that can be fitted: a constant, or several whose columns are parallel."""

    name: str
    members: tuple[str, ...]
    start: float
    values: Array
    """Bytes that one unit of it adds to each row."""

    @property
    def n(self) -> int:
        return int(np.count_nonzero(self.values))


def total(columns: Sequence[Column], values: Array | None = None) -> Array | float:
    starts = [column.start for column in columns] if values is None else values
    return sum((column.values * value for column, value in zip(columns, starts, strict=True)), start=0.0)


def merge(columns: Sequence[Column]) -> list[Column]:
    """Columns that are parallel become one: rows can tell only what they add up to."""
    left, merged = list(columns), []
    while left:
        first, *others = left
        same = [first, *(column for column in others if _is_parallel(first.values, column.values))]
        merged.append(_combined(same) if len(same) > 1 else first)
        left = [column for column in others if column not in same]
    return merged


def _is_parallel(one: Array, other: Array) -> bool:
    one, other = one / np.linalg.norm(one), other / np.linalg.norm(other)
    return bool(min(np.linalg.norm(one - other), np.linalg.norm(one + other)) < PARALLEL)


def _combined(columns: Sequence[Column]) -> Column:
    """The smallest column is the unit; the others are so many times it."""
    norms = [float(np.linalg.norm(column.values)) for column in columns]
    unit = min(norms)
    times = [norm / unit for norm in norms]
    return Column(
        name=" + ".join(_times(k, column.name) for k, column in zip(times, columns, strict=True)),
        members=tuple(column.name for column in columns),
        start=sum(k * column.start for k, column in zip(times, columns, strict=True)),
        values=columns[norms.index(unit)].values,
    )


def _times(k: float, name: str) -> str:
    return name if abs(k - 1) < PARALLEL else f"{k:g}*{name}"


@dataclass(frozen=True, kw_only=True)
class Solved:
    values: Array | None
    """Fitted values in the columns' order; None where the rows are too few for any."""
    by_name: Mapping[str, float]
    """Fitted values of the columns that are identified."""
    errors: Mapping[str, float]
    """Standard errors of the columns that are identified."""
    residual: float | None
    refused: Mapping[str, str]
    """Why a column is not identified."""


def solve(columns: Sequence[Column], target: Array, weight: Array) -> Solved:
    """Least squares of relative errors over the columns, each scaled to length 1 so that ranks can be judged."""
    if not columns:
        return Solved(values=None, by_name={}, errors={}, residual=None, refused={})
    weighted = np.stack([column.values / weight for column in columns], axis=1)
    lengths = np.linalg.norm(weighted, axis=0)
    left, singular, right = np.linalg.svd(weighted / lengths, full_matrices=False)
    rank = int(np.sum(singular > PARALLEL * singular[0]))
    n = len(target)
    distinct = len(np.unique(np.stack([column.values for column in columns], axis=1), axis=0))
    if distinct <= len(columns):
        rows = "1 distinct row" if distinct == 1 else f"{distinct} distinct rows"
        why = f"{rows} for {len(columns)} constant{'s' * (len(columns) > 1)}: one more at least is needed"
        return Solved(
            values=None, by_name={}, errors={}, residual=None, refused=dict.fromkeys((c.name for c in columns), why)
        )
    inverse = right[:rank].T / singular[:rank]
    values = inverse @ (left[:, :rank].T @ (target / weight)) / lengths
    rest = weighted @ values - target / weight
    rest[np.abs(rest) < ROUNDING] = 0.0
    spread = float(rest @ rest) / (n - rank)
    errors = np.sqrt(spread * np.sum(inverse**2, axis=1)) / lengths
    refused = _dependent(columns, right[rank:]) if rank < len(columns) else {}
    known = [number for number, column in enumerate(columns) if column.name not in refused]
    return Solved(
        values=values,
        by_name={columns[number].name: float(values[number]) for number in known},
        errors={columns[number].name: float(errors[number]) for number in known},
        residual=float(np.sqrt(np.mean(rest**2))),
        refused=refused,
    )


def _dependent(columns: Sequence[Column], null: Array) -> dict[str, str]:
    """The columns that some other columns make up between them."""
    loose = [c.name for c, part in zip(columns, null.T, strict=True) if np.linalg.norm(part) > PARALLEL]
    return {
        name: f"the rows can't tell it from {', '.join(other for other in loose if other != name)}" for name in loose
    }
