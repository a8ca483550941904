"""The GPUs that the command knows by name."""

from __future__ import annotations

from nooom.formulas.errors import UsageError, nearest

NAMES = (
    "t4-16gb", "v100-16gb", "v100-32gb", "a10-24gb", "a100-40gb", "a100-80gb", "l4-24gb", "l40s-48gb", "rtx3090-24gb",
    "rtx4090-24gb", "rtx5090-32gb", "h100-80gb", "h100-pcie-80gb", "h200-141gb", "b200-180gb",
)  # fmt: skip


def find(name: str) -> str:
    """The name as the table spells it; raises UsageError with the nearest names for any other."""
    if name.lower() not in NAMES:
        raise UsageError(f"--gpu {name!r} is unknown; {nearest(name, NAMES)}")
    return name.lower()
