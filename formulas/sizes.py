"""Sizes as people write them."""

from __future__ import annotations

import re

from nooom.formulas.errors import UsageError

_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip


def size_bytes(text: str, what: str, *, least: int = 1, most: int = 1 << 50) -> int:
    """``200GiB``, ``96 GB`` or ``64 MiB`` in bytes.

    Args:
        text: a number and its unit, in any case.
        what: names it in an error, e.g. an option.
        least: the smallest in bytes that makes sense.
        most: and the largest.

    Raises:
        UsageError: no such size, or one out of bounds.
    """
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmgt]?i?b)", text.strip().lower())
    size = round(float(found[1]) * _UNITS[found[2]]) if found and found[2] in _UNITS else 0
    if not least <= size <= most:
        raise UsageError(f"{what} must be a size such as 200GiB or 96GB, not {text[:40]!r}")
    return size
