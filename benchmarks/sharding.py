"""A suite in parts that take equally long, dealt alike on every machine: ``--shard K/N``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from nooom.benchmarks.runner import Planned
from nooom.formulas.errors import UsageError


def shard(planned: Sequence[Planned], text: str | None, seconds: Callable[[Planned], float]) -> list[Planned]:
    """The K-th of N parts, in the suite's order: what comes first in a suite comes first in its part.

    Neighbours that differ in their attention alone are there to be compared: they stay together.

    Args:
        planned: every case, the most telling first.
        text: ``K/N``, counted from 1; None is the whole.
        seconds: how long a case takes.

    Raises:
        UsageError: a text that is not K/N.
    """
    if text is None:
        return list(planned)
    k, slash, n = text.partition("/")
    if not (slash and k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n) <= 10_000):
        raise UsageError(f"--shard must read K/N with 1 <= K <= N, e.g. 1/3, not {text!r}")
    return _dealt(planned, int(n), seconds)[int(k) - 1]


def _dealt(planned: Sequence[Planned], parts: int, seconds: Callable[[Planned], float]) -> list[list[Planned]]:
    """Each group in its turn to the part that has least to do; of equal ones to the first."""
    dealt: list[list[Planned]] = [[] for _ in range(parts)]
    spent = [0.0] * parts
    for _, group in itertools.groupby(planned, key=_but_for_attention):
        cases = list(group)
        least = spent.index(min(spent))
        dealt[least] += cases
        spent[least] += sum(seconds(item) for item in cases)
    return dealt


def _but_for_attention(item: Planned) -> tuple[object, ...]:
    flags = item.case.to_dict()
    return tuple(value for name, value in flags.items() if name != "attention")
