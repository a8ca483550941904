"""``nooom replay``: a PyTorch memory snapshot through the simulated allocator, as it was and as it might have been."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import GPU, find
from nooom.profiler.simulator.settings import Order, Settings
from nooom.profiler.snapshots import growth
from nooom.profiler.snapshots.recording import Recording, load
from nooom.profiler.snapshots.replay import Memory, Replay, Replayed

SCHEMA_VERSION = 1
COMPARED = ("", "expandable_segments:True", "roundup_power2_divisions:8", "max_split_size_mb:256")
"""The settings that are tried where none are named; without those that were recorded."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    snapshot: Path
    alloc_confs: Sequence[str]
    gpu: str | None
    gpu_memory: str | None
    device_index: int | None
    against: Path | None
    as_json: bool


def replay(request: Request) -> int:
    """Replay and show; returns the exit code."""
    if request.gpu is None and request.gpu_memory is not None:
        raise UsageError("--gpu-memory gives a named GPU another capacity: add --gpu NAME")
    gpu = find(request.gpu, request.gpu_memory) if request.gpu is not None else None
    for conf in request.alloc_confs:
        Settings.parse(conf)
    with _waiting(f"replaying {request.snapshot}"):
        document = _document(request, gpu)
    if request.as_json:
        print(json.dumps(document))
    else:
        from nooom.benchmarks.reports.replay import show

        show(document)
    return 0


def _waiting(what: str) -> Any:
    """Something moves meanwhile, on a terminal."""
    return Console(stderr=True, markup=False).status(what)


def _document(request: Request, gpu: GPU | None) -> dict[str, Any]:
    recording = load(request.snapshot, request.device_index)
    replayed = Replay(recording)
    same, orders = replayed.as_recorded()
    rows = [same, *_others(replayed, request.alloc_confs, same.order, gpu)]
    recorded = replayed.recorded
    return {
        "schema_version": SCHEMA_VERSION,
        "gpu": None if gpu is None else _gpu(gpu),
        "snapshot": str(request.snapshot),
        "device_index": recording.device,
        "events": len(recording.events),
        "complete": replayed.beginning.is_empty,
        "recorded": {
            "settings": recording.conf,
            "start_reserved_bytes": recorded.begins_with_bytes,
            "peak_reserved_bytes": recorded.peak_bytes,
            "final_reserved_bytes": recorded.final_bytes,
            "ooms": recorded.ooms,
            "capacity_bytes": recorded.capacity_bytes,
        },
        "order": {"name": same.order.value, "alike": [order.value for order in orders]},
        "replays": [_row(one) for one in rows],
        "growth": None if request.against is None else _growth(replayed, request.against),
        "notes": list(_notes(replayed, same, orders, gpu)),
    }


def _others(replayed: Replay, confs: Sequence[str], order: Order, gpu: GPU | None) -> Iterator[Replayed]:
    """What is compared with the first: the same on the named GPU and from a packed beginning, then other settings."""
    recording, memory = replayed.recording, replayed.memory if gpu is None else Memory.of(gpu)
    if gpu is not None and replayed.recorded.begins_with_bytes <= gpu.usable_bytes:
        yield replayed.same(order, memory)
    if not replayed.beginning.is_empty:
        yield replayed.same(order, memory, packed=True)
    for conf in confs or [conf for conf in COMPARED if Settings.parse(conf) != recording.settings]:
        yield replayed.under(conf, order, memory)


def _gpu(gpu: GPU) -> dict[str, Any]:
    return {"name": gpu.name, "total_bytes": gpu.total_bytes, "usable_bytes": gpu.usable_bytes, "source": gpu.source}


def _row(one: Replayed) -> dict[str, Any]:
    failed = one.failed
    return {
        "settings": one.conf,
        "start": "packed" if one.packed else "as recorded",
        "capacity_bytes": one.memory.capacity_bytes,
        "capacity_source": one.memory.source,
        "peak_reserved_bytes": one.peak_reserved_bytes,
        "final_reserved_bytes": one.final_reserved_bytes,
        "peak_allocated_bytes": one.peak_allocated_bytes,
        "fragmentation_bytes": one.fragmentation_bytes,
        "retries": one.retries,
        "oom": None
        if failed is None
        else {
            "event": failed.event,
            "tried_bytes": failed.tried_bytes,
            "as_recorded": failed.as_recorded,
            "message": failed.message,
        },
        "met_ooms": one.met,
        "different": {
            "allocations": one.different,
            "first_event": one.first_different,
            "largest_bytes": one.largest_difference_bytes,
        },
    }


def _growth(replayed: Replay, against: Path) -> dict[str, Any]:
    other = Replay(load(against))
    by_site = growth.has_frames(replayed.recording) and growth.has_frames(other.recording)
    before, now = (growth.peak_of(one.recording, one.beginning, by_site=by_site) for one in (other, replayed))
    return {
        "against": str(against),
        "by": "site" if by_site else "size",
        "peak_requested_bytes": {"before": before.requested_bytes, "now": now.requested_bytes},
        "rows": [
            {
                "what": row.what,
                "count": dict(zip(("before", "now"), row.count, strict=True)),
                "bytes": dict(zip(("before", "now"), row.size_bytes, strict=True)),
                "change_bytes": row.change_bytes,
            }
            for row in growth.grown(before, now)
        ],
    }


def _notes(replayed: Replay, same: Replayed, orders: Sequence[Order], gpu: GPU | None) -> Iterator[str]:
    recording: Recording = replayed.recording
    if len(recording.events_by_device) > 1:
        told = ", ".join(f"{index}: {count:,}" for index, count in list(recording.events_by_device.items())[:16])
        yield f"device {recording.device} is replayed; events by device: {told}"
    if not replayed.beginning.is_empty:
        yield (
            "the recording begins midway: what lived then is rebuilt from its end, and under other settings (start: "
            "packed) allocated before the first event"
        )
    if same.different:
        yield (
            f"after {same.different:,} allocations, the first at event {same.first_different:,}, the simulation has "
            "reserved something else than the recording"
        )
    if len(orders) < len(Order):
        yield (
            "releases of torch differ in which of equally large free blocks they take, and here it matters: the order "
            f"by {' or '.join(order.value for order in orders)} follows the recording most closely"
        )
    settings = recording.settings
    if settings.garbage_collection_threshold or settings.max_split_size_bytes is not None:
        yield "its settings give memory back early, by what the GPU has: without --gpu that is not replayed"
    if gpu is not None and gpu.caveat is not None:
        yield gpu.caveat
    for action, count in recording.ignored.items():
        if action != "snapshot":
            yield f"{count:,} events {action!r} are left out"
    yield from recording.notes
