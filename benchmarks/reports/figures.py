"""How figures are written: GiB = 2**30, always said; errors signed."""

from __future__ import annotations


def gib(size_bytes: int | None) -> str:
    """``1.234 GiB`` with three decimals; a dash where unknown."""
    return "-" if size_bytes is None else f"{size_bytes / 2**30:.3f}"


def percent(error: float | None) -> str:
    """Signed, with one decimal; from a factor of ten on as a factor."""
    if error is None:
        return "-"
    if error >= 9:
        return f"x{1 + error:.1f}"
    return f"{error:+.1%}"
