"""Snapshots of programs that never ran: random requests to a simulated allocator, written as PyTorch writes its own."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

from nooom.profiler.simulator.allocator import CachingAllocator
from nooom.profiler.simulator.settings import MIB, Order, Settings
from nooom.profiler.snapshots.writing import Told, frame, write_snapshot


def written(
    path: Path,
    *,
    seed: int = 0,
    steps: int = 400,
    conf: str = "",
    order: Order = Order.SEGMENT,
    cut: int = 0,
    step_bytes: int = 2 * MIB,
) -> CachingAllocator:
    """Write a program's snapshot, without its first so many events; gives the allocator that it asked."""
    chance = random.Random(seed)
    events: list[Told] = []
    site = [frame("step", "train.py", 7)]
    made = CachingAllocator(
        settings=Settings.parse(conf),
        order=order,
        record=lambda action, address, size: events.append(
            Told(action=action, address=address, size=size, frames=site if action == "alloc" else ())
        ),
    )
    live: list[int] = []
    for _ in range(steps):
        if live and chance.random() < 0.48:
            made.free(live.pop(chance.randrange(len(live))))
        elif chance.random() < 0.02:
            made.empty_cache()
        elif chance.random() < 0.4:
            live.append(made.malloc(chance.randrange(1, MIB)))
        else:
            live.append(made.malloc(step_bytes * chance.randrange(1, 30)))
    write_snapshot(path, made.segments(), events[cut:], made.settings, conf)
    return made


def document(path: Path) -> dict[str, Any]:
    """What a snapshot of ours holds."""
    return dict(pickle.loads(path.read_bytes()))
