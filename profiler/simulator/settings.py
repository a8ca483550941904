"""What PYTORCH_ALLOC_CONF can say that changes sizes, and which release of torch orders free blocks how."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nooom.formulas.errors import UsageError, nearest

MIB = 2**20

DIVISIONS = 16
"""Entries of the table of divisions: the last is for 32 GiB and everything above."""

_IGNORED = {
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "throw_on_cudamalloc_oom",
}
"""Options of torch 2.13 that change no size on the device: the host's pages, locks, capture, another error's text."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The caching allocator's options, with PyTorch's defaults."""

    expandable_segments: bool = False
    """Whether one range of addresses grows page by page, instead of a segment for each need."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * DIVISIONS
    """Into how many steps each interval between powers of two is divided when sizes are rounded up; 0 and 1: multiples
    of 512 bytes. Entry i is for sizes from 2**i MiB to 2**(i + 1) MiB, the first also for smaller ones."""
    max_split_size_bytes: int | None = None
    """Blocks of this size and above are neither split nor given to smaller requests; None: all are."""
    max_non_split_rounding_bytes: int = 20 * MIB
    """How much larger than its request such a block may be; of no effect without ``max_split_size_bytes``."""
    garbage_collection_threshold: float = 0.0
    """Above which part of the allowed memory old free blocks are given back; 0: never."""
    large_segment_size_bytes: int = 20 * MIB
    """The segments that requests from 1 to 10 MiB share, and the page by which large expandable segments grow."""
    per_process_memory_fraction: float = 1.0
    """How much of the GPU's memory the allocator may reserve."""

    @classmethod
    def parse(cls, text: str) -> Settings:
        """What stands in ``PYTORCH_ALLOC_CONF``, such as ``expandable_segments:True,max_split_size_mb:128``.

        Options that change no size on the device are accepted and ignored. As in PyTorch, white space is, and of an
        option that stands there twice the last one counts.

        Raises:
            UsageError: An option or a value that PyTorch would refuse, or another backend than its own allocator.
        """
        found: dict[str, Any] = {}
        for name, value in _pairs("".join(text.split())):
            if name == "backend":
                _check_backend(value)
            elif name in _PARSERS:
                field, parser = _PARSERS[name]
                found[field] = parser(name, value)
            elif name not in _IGNORED:
                known = nearest(name, {*_PARSERS, *_IGNORED, "backend"})
                raise UsageError(f"PYTORCH_ALLOC_CONF has no option {name!r}; {known}")
        settings = replace(cls(), **found)
        _check_bounds(settings, found)
        return settings


class Order(enum.Enum):
    """Which of the free blocks of one size an allocation takes; releases of torch differ."""

    ADDRESS = "address"
    """The lowest address (up to 2.11)."""
    REGISTRATION = "registration"
    """The block that was created first (2.12)."""
    SEGMENT = "segment"
    """The one in the segment that was created first, there the lowest address (from 2.13 on)."""


def order_for(torch_version: str) -> Order:
    """The order of a release, such as 2.11.0+cu128.

    Raises:
        UsageError: It doesn't begin with two numbers.
    """
    if (found := re.match(r"(\d+)\.(\d+)", torch_version)) is None:
        raise UsageError(f"no release of torch: {torch_version!r}; such as 2.13.0")
    release = (int(found[1]), int(found[2]))
    if release < (2, 12):
        return Order.ADDRESS
    return Order.REGISTRATION if release == (2, 12) else Order.SEGMENT


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Each option's name and value; commas in brackets divide no options."""
    for part in re.split(r",(?![^\[]*\])", text.removesuffix(",")) if text else ():
        name, colon, value = part.partition(":")
        if not (name and colon and value):
            raise UsageError(f"PYTORCH_ALLOC_CONF: {part!r} is no option; they are written name:value")
        yield name, value


def _check_backend(value: str) -> None:
    if value == "cudaMallocAsync":
        raise UsageError(
            "PYTORCH_ALLOC_CONF: backend:cudaMallocAsync is CUDA's own allocator; only native is simulated"
        )
    if value != "native":
        raise UsageError(f"PYTORCH_ALLOC_CONF: backend is {value!r}; valid: native")


def _flag(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise UsageError(f"PYTORCH_ALLOC_CONF: {name} is {value!r}; valid: True, False")
    return value == "True"


def _count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise UsageError(f"PYTORCH_ALLOC_CONF: {name} is {value!r}; a whole number is wanted")
    return int(value)


def _mebibytes(name: str, value: str) -> int:
    return _count(name, value) * MIB


def _fraction(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(f"PYTORCH_ALLOC_CONF: {name} is {value!r}; a number between 0 and 1 is wanted")
    return number


def _threshold(name: str, value: str) -> float:
    number = _fraction(name, value)
    if number in (0, 1):
        raise UsageError(f"PYTORCH_ALLOC_CONF: {name} is {value!r}; a number above 0 and below 1 is wanted")
    return number


def _divisions(name: str, value: str) -> tuple[int, ...]:
    """One number for all sizes, or a table such as ``[256:1,512:2,>:4]``, in MiB."""
    if not value.startswith("["):
        return (_power_of_two(name, value),) * DIVISIONS
    table = [0] * DIVISIONS
    last = 0
    for count, entry in enumerate(_entries(name, value)):
        bound, _, divisions = entry.partition(":")
        into = 0 if divisions == "0" else _power_of_two(name, divisions)
        if bound == ">":
            table[last + 1 :] = [into] * (DIVISIONS - last - 1)  # alone it leaves out the sizes below 2 MiB
            continue
        index = min(_power_of_two(name, bound).bit_length() - 1, DIVISIONS - 1)
        if count == 0:
            table[:index] = [into] * index
        table[index] = into
        last = index
    return tuple(table)


def _entries(name: str, value: str) -> Sequence[str]:
    if not value.endswith("]"):
        raise UsageError(f"PYTORCH_ALLOC_CONF: {name} is {value!r}; the closing bracket is missing")
    return value[1:-1].removesuffix(",").split(",")


def _power_of_two(name: str, value: str) -> int:
    number = _count(name, value)
    if number.bit_count() != 1:
        raise UsageError(f"PYTORCH_ALLOC_CONF: {name} has {value}; powers of two are wanted")
    return number


def _check_bounds(settings: Settings, named: Container[str]) -> None:
    """Those that options have by themselves, and by the size of large segments."""
    large = settings.large_segment_size_bytes
    if large <= 10 * MIB:
        raise UsageError(f"PYTORCH_ALLOC_CONF: large_segment_size_mb is {large // MIB}; more than 10 is wanted")
    for option in ("max_split_size_mb", "max_non_split_rounding_mb"):
        field, _ = _PARSERS[option]
        if field in named and (value := getattr(settings, field)) < large:
            raise UsageError(f"PYTORCH_ALLOC_CONF: {option} is {value // MIB}; at least {large // MIB} is wanted")


_PARSERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "max_split_size_mb": ("max_split_size_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "large_segment_size_mb": ("large_segment_size_bytes", _mebibytes),
    "per_process_memory_fraction": ("per_process_memory_fraction", _fraction),
}
