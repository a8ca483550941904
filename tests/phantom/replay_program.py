"""A program of random requests on two streams that leaves a snapshot, and prints its peaks: FILE ENTRIES."""

from __future__ import annotations

import contextlib
import random
import sys

import torch

path, entries = sys.argv[1], int(sys.argv[2])
torch.cuda.memory._record_memory_history(max_entries=entries)
chance = random.Random(1)
side = torch.cuda.Stream()
live: list[torch.Tensor] = []
for _ in range(1500):
    draw = chance.random()
    if live and draw < 0.48:
        live.pop(chance.randrange(len(live)))
    elif draw < 0.5:
        torch.cuda.empty_cache()
    else:
        size = chance.randrange(1, 1 << 20) if chance.random() < 0.5 else chance.randrange(1, 40 << 20)
        if chance.random() < 0.3:
            with torch.cuda.stream(side):
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        else:
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            if chance.random() < 0.1:
                live[-1].record_stream(side)
with contextlib.suppress(torch.OutOfMemoryError):
    torch.empty(79 << 30, dtype=torch.uint8, device="cuda")
print("peaks", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), file=sys.stderr)
torch.cuda.memory._dump_snapshot(path)
