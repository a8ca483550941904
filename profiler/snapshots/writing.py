"""A memory snapshot as PyTorch writes them, of an allocator that is simulated: its own viewers open it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.formulas.errors import UsageError
from nooom.profiler.simulator.allocator import SegmentState
from nooom.profiler.simulator.settings import Settings

PROTOCOL = 4
"""Of the pickle: the viewer in the browser has a reader of its own, which knows what this one has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """One event of the allocator, and what is known of the block it made."""

    action: str
    address: int
    size: int
    frames: Sequence[Mapping[str, Any]] = ()
    """``name``, ``filename`` and ``line`` of each, the innermost first."""
    category: str | None = None
    """The viewer colours blocks by it."""


def frame(name: str, filename: str = "", line: int = 0) -> dict[str, Any]:
    """One entry of a stack."""
    return {"name": name, "filename": filename, "line": line}


def write_snapshot(
    path: Path, segments: Iterable[SegmentState], events: Iterable[Told], settings: Settings, conf: str = ""
) -> None:
    """Write a pickle for pytorch.org/memory_viz, ``python -m torch.cuda._memory_viz`` and ``nooom replay``.

    Args:
        path: of the file.
        segments: what is reserved at the end.
        events: in order, from the first on.
        settings: the allocator's.
        conf: them, as they would stand in PYTORCH_ALLOC_CONF.

    Raises:
        UsageError: It can't be written there.
    """
    frames: dict[int, Sequence[Mapping[str, Any]]] = {}
    trace = []
    for event in events:
        if event.action == "alloc":
            frames[event.address] = event.frames
        trace.append(_event(event))
    document = {
        "segments": [_segment(segment, frames) for segment in segments],
        "device_traces": [trace],
        "allocator_settings": _settings(settings, conf),
        "external_annotations": [],
    }
    try:
        with open(path, "wb") as file:
            pickle.dump(document, file, protocol=PROTOCOL)
    except OSError as error:
        raise UsageError(f"{path}: can't be written: {error.strerror}") from error


def _event(event: Told) -> dict[str, Any]:
    where = "device_free" if event.action == "oom" else "addr"
    said = {
        "action": event.action,
        where: event.address,
        "size": event.size,
        "stream": 0,
        "frames": event.frames if isinstance(event.frames, list) else list(event.frames),
    }
    return said if event.category is None else {**said, "category": event.category}


def _segment(segment: SegmentState, frames: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    live = [block for block in segment.blocks if block.state != "inactive"]
    allocated = sum(block.size for block in live)
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.total_size,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(block.requested for block in live),
        "stream": 0,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": segment.is_expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": block.state,
                "frames": list(frames.get(block.address, ())) if block.state != "inactive" else [],
            }
            for block in segment.blocks
        ],
    }


def _settings(settings: Settings, conf: str) -> dict[str, Any]:
    """As PyTorch has them."""
    table = settings.roundup_power2_divisions
    return {
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        "max_split_size": -1 if settings.max_split_size_bytes is None else settings.max_split_size_bytes,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {str(1 << index): divisions for index, divisions in enumerate(table)},
    }
