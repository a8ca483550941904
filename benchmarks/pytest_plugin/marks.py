"""What a test's marks ask for: a limit, a comparison with a baseline.  Read before anything of the test runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nooom.formulas.errors import UsageError, nearest
from nooom.formulas.sizes import size_bytes

if TYPE_CHECKING:
    import pytest

LIMIT, BASELINE = "limit_gpu_memory", "gpu_memory_baseline"
LINES = (
    f'{LIMIT}(limit, *, metric="allocated", device="auto", rerun=True): fail when the test\'s peak of GPU memory is '
    'above the limit, such as "12 GiB" (nooom)',
    f"{BASELINE}(path=None, band=None, *, rerun=True): fail when the test's peaks of GPU memory have grown since its "
    "line in a baseline was written (nooom)",
)
"""How the marks are registered: what ``pytest --markers`` says."""

METRICS = ("allocated", "reserved")
DEVICES = ("auto", "cuda", "cpu")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """``@pytest.mark.limit_gpu_memory``."""

    limit_bytes: int
    metric: str
    device: str
    rerun: bool


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """``@pytest.mark.gpu_memory_baseline``."""

    path: Path | None
    band_bytes: int | None
    rerun: bool


@dataclass(frozen=True, kw_only=True)
class Asked:
    """All that one test's marks ask for."""

    limits: tuple[Limit, ...]
    """At most one a metric: the mark that stands nearest to the test."""
    baseline: Baseline | None
    device: str

    @property
    def rerun(self) -> bool:
        """Whether the body may run once more; one mark that forbids it is enough."""
        return all(limit.rerun for limit in self.limits) and (self.baseline is None or self.baseline.rerun)


def asked(item: pytest.Item) -> Asked | None:
    """What a test asks for, or None for a test without a mark of ours.

    Raises:
        UsageError: arguments that a mark does not take, or that contradict each other.
    """
    limits: dict[str, Limit] = {}
    for mark in item.iter_markers(LIMIT):
        one = _taken(LIMIT, limit_gpu_memory, mark)
        limits.setdefault(one.metric, one)
    nearest_mark = item.get_closest_marker(BASELINE)
    baseline = None if nearest_mark is None else _taken(BASELINE, gpu_memory_baseline, nearest_mark)
    if not limits and baseline is None:
        return None
    devices = sorted({limit.device for limit in limits.values()} - {"auto"})
    if len(devices) > 1:
        raise UsageError(f"{LIMIT}: one test is measured on one device, not on {' and '.join(devices)}")
    return Asked(limits=tuple(limits.values()), baseline=baseline, device=devices[0] if devices else "auto")


def limit_gpu_memory(limit: Any, *, metric: Any = "allocated", device: Any = "auto", rerun: Any = True) -> Limit:
    """The mark of that name; raises UsageError, or TypeError where Python itself says what is wrong."""
    for name, value, known in (("metric", metric, METRICS), ("device", device, DEVICES)):
        if value not in known:
            raise UsageError(f"{name}={value!r}; {nearest(str(value), known)}")
    if metric == "reserved" and device == "cpu":
        raise UsageError('metric="reserved" on the cpu, whose allocator reserves nothing; use metric="allocated"')
    return Limit(limit_bytes=size(limit, "limit"), metric=metric, device=device, rerun=_yes_or_no(rerun))


def gpu_memory_baseline(path: Any = None, band: Any = None, *, rerun: Any = True) -> Baseline:
    """The mark of that name; raises as :func:`limit_gpu_memory` does."""
    if not isinstance(path, (str, Path, type(None))):
        raise UsageError(f"path={path!r} is no path")
    return Baseline(
        path=None if path is None else Path(path),
        band_bytes=None if band is None else size(band, "band"),
        rerun=_yes_or_no(rerun),
    )


def size(value: Any, name: str) -> int:
    """``"12 GiB"``, ``"800MiB"``, ``"96 GB"`` or a number of bytes -> bytes; raises UsageError."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
        return value
    if not isinstance(value, str):
        raise UsageError(f'{name} must be a size such as "12 GiB" or a number of bytes, not {str(value)[:40]!r}')
    return size_bytes(value, name)


def _taken(name: str, make: Callable[..., T], mark: pytest.Mark) -> T:
    try:
        return make(*mark.args, **mark.kwargs)
    except (UsageError, TypeError) as error:
        raise UsageError(f"{name}: {str(error).removeprefix(f'{name}() ')}") from error


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"rerun={value!r} is neither True nor False")
    return value
