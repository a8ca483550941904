"""Plays programs of requests against torch's own allocator: JSON on standard input, JSON on standard output.

Each program has ``settings``, what stands in PYTORCH_ALLOC_CONF, and ``steps``: malloc with a name and a size, free with a name,
empty_cache. Each runs in a process of its own, forked when torch is imported: that takes longer than the program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

FIGURES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")


def play(program: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures after every step, the events, the messages and the memory's map."""
    import torch

    torch._C._accelerator_setAllocatorSettings(program["settings"])
    torch.cuda.init()
    torch.empty(1, device="cuda")  # which opens the context
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history(context=None, max_entries=sys.maxsize)
    figures, messages = [], []
    addresses: dict[int, int] = {}
    for action, *about in program["steps"]:
        if action == "malloc":
            try:
                addresses[about[0]] = torch.cuda.caching_allocator_alloc(about[1])
            except torch.OutOfMemoryError as error:
                messages.append(str(error))
        elif action == "free" and about[0] in addresses:
            torch.cuda.caching_allocator_delete(addresses.pop(about[0]))
        elif action == "empty_cache":
            torch.cuda.empty_cache()
        figures.append(_figures(torch.cuda.memory_stats()))
    snapshot = torch.cuda.memory._snapshot()
    return {
        "torch": torch.__version__,
        "free_bytes": free_bytes,
        "total_bytes": total_bytes,
        "figures": figures,
        "messages": messages,
        "events": [
            (event["action"], event.get("addr", event.get("device_free")), event["size"])
            for event in snapshot["device_traces"][0]
            if event["action"] != "snapshot"
        ],
        "segments": [
            (one["total_size"], [(block["size"], block["state"]) for block in one["blocks"]])
            for one in snapshot["segments"]
        ],
    }


def _figures(stats: Mapping[str, int]) -> list[int]:
    sizes = [stats[f"{name}.all.{when}"] for when in ("current", "peak") for name in FIGURES]
    return [*sizes, stats["num_alloc_retries"], stats["num_ooms"]]


def in_a_process_of_its_own(program: Mapping[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with open(writing, "w") as file:
                json.dump(play(program), file)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return dict(json.loads(said))


def main(programs: Sequence[Mapping[str, Any]]) -> None:
    import torch  # noqa: F401  # once for all

    json.dump([in_a_process_of_its_own(program) for program in programs], sys.stdout)


if __name__ == "__main__":
    from nooom.formulas.gpus import find
    from nooom.profiler.phantom.launcher import Phantom, is_played_here

    if is_played_here():
        main(json.load(sys.stdin))
    else:
        with Phantom(find("a100-80gb")) as phantom:
            command = [sys.executable, __file__]
            sys.exit(subprocess.run(command, env=phantom.environment(os.environ), check=False).returncode)
