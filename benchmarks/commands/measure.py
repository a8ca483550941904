"""``nooom measure``: anyone's command, and the peaks of each of its processes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nooom.benchmarks.reports.console import console
from nooom.benchmarks.reports.figures import gib
from nooom.formulas.errors import CannotMeasureError, UsageError, nearest
from nooom.formulas.gpus import GPU, find
from nooom.profiler import command, hardware
from nooom.profiler.command import Ended, OnGpu, Process
from nooom.profiler.phantom.launcher import Phantom, playing
from nooom.profiler.phantom.program import prefers_cudnn

SCHEMA_VERSION = 1
_DEVICES = ("auto", "cuda", "phantom")
_FIGURES = ("max_allocated_bytes", "max_reserved_bytes", "max_active_bytes", "device_bytes")
_ASKERS_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    words: Sequence[str]
    device: str
    gpu: str | None
    gpu_memory: str | None
    gpus: int | None
    snapshot: Path | None
    as_json: bool


def measure(request: Request) -> int:
    """Run the command and show what it took; returns the command's exit code."""
    gpu = _played(request)
    if not request.words:
        raise UsageError("no command to measure: nooom measure [options] -- python train.py")
    if request.snapshot is not None and (request.snapshot.is_dir() or not request.snapshot.absolute().parent.is_dir()):
        raise UsageError(f"--snapshot {request.snapshot} is a folder, or lies in none that exists")
    stdout = sys.stderr if request.as_json else None
    sys.stdout.flush()
    if gpu is None:
        ended = command.run(request.words, snapshot=request.snapshot, stdout=stdout)
    else:
        with Phantom(gpu, request.gpus or 1) as phantom:
            ended = command.run(request.words, phantom, snapshot=request.snapshot, stdout=stdout)
    if request.as_json:
        print(json.dumps(_document(ended, gpu, request)))
    elif ended.processes:
        _show(ended, gpu, console())
    if not ended.processes:
        print("nooom: no process of the command used a GPU through torch", file=sys.stderr)
    return ended.exit_code


def _played(request: Request) -> GPU | None:
    """The GPU to play, or None where the command runs on what is there; ``auto`` plays the one that is named."""
    if request.device == "dryrun":
        raise UsageError(
            "--device dryrun runs nooom's own cases; for a command there is --device phantom, which needs no GPU either"
        )
    if request.device not in _DEVICES:
        raise UsageError(f"--device {request.device!r} is unknown; {nearest(request.device, _DEVICES)}")
    if request.gpu is None and request.gpu_memory is not None:
        raise UsageError("--gpu-memory gives a played GPU another capacity: add --gpu NAME")
    if request.device == "cuda" and request.gpu is not None:
        raise UsageError("--gpu names the GPU that a phantom plays; --device cuda measures on what is there")
    if request.gpu is not None:
        return find(request.gpu, request.gpu_memory)
    if request.device == "phantom":
        raise UsageError("--device phantom plays a GPU: add --gpu NAME, e.g. --gpu a100-80gb")
    if request.gpus is not None:
        raise UsageError("--gpus counts a phantom's GPUs: add --gpu NAME")
    # By the driver alone: which torch the command has is not ours to know.
    if not hardware.find_gpus():
        raise CannotMeasureError(
            f"no GPU to measure on: {hardware.looked_for()}; a phantom plays one: --gpu NAME, e.g. --gpu a100-80gb"
        )
    return None


def _document(ended: Ended, gpu: GPU | None, request: Request) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_code": ended.exit_code,
        "device": "cuda" if gpu is None else "phantom",
        "source": _source(gpu),
        "gpu": _gpu(ended, gpu, request.gpus or 1),
        "processes": [_process(process) for process in ended.processes],
        "snapshots": [str(path) for path in ended.snapshots],
    }


def _source(gpu: GPU | None) -> str:
    return "measured" if gpu is None else "emulated"


def _gpu(ended: Ended, gpu: GPU | None, count: int) -> dict[str, Any] | None:
    """The device's name, memory and number; of a played one also where its figures come from."""
    if gpu is not None:
        return {"name": gpu.device_name, "total_bytes": gpu.total_bytes, "count": count, "played": playing(gpu)}
    used = {one.index for process in ended.processes for one in process.gpus if one.index is not None}
    found = [one for one in hardware.find_gpus() if one.index in used] or hardware.find_gpus()
    if not found:
        return None
    return {"name": found[0].name, "total_bytes": found[0].total_bytes, "count": len(found), "played": None}


def _process(process: Process) -> dict[str, Any]:
    """The figures of the GPU where each is the largest, then those of every GPU."""
    return {
        "pid": process.pid,
        "command": None if process.command is None else list(process.command),
        **{name: process.largest(name) for name in _FIGURES},
        "gpus": [{"index": one.index, **{name: getattr(one, name) for name in _FIGURES}} for one in process.gpus],
        "oom": process.oom,
        "invented_answers": _answers(process),
    }


def _answers(process: Process) -> list[dict[str, Any]] | None:
    """As ``profiler.known_values.summary`` writes them, whose module needs torch."""
    if process.invented is None:
        return None
    return [{"asked_by": place, "times": times} for place, times in process.invented]


def _show(ended: Ended, gpu: GPU | None, out: Console) -> None:
    where = f"emulated on phantom {gpu.name}" if gpu is not None else "measured on cuda"
    several = len({one.index for process in ended.processes for one in process.gpus}) > 1
    table = Table(title=f"peaks in GiB, {where}", title_justify="left", box=None, pad_edge=False)
    figures = 11 * len(_FIGURES) + (5 if several else 0)
    # A command gives way, a figure never.
    table.add_column("process", no_wrap=True, overflow="ellipsis", max_width=max(20, out.width - figures))
    if several:
        table.add_column("gpu", justify="right")
    for name in ("allocated", "reserved", "active", "device"):
        table.add_column(name, justify="right", no_wrap=True, min_width=9)
    for process in ended.processes:
        head = f"{process.pid} {_name(process)}"
        for one in process.gpus or (None,):
            cells = [gib(getattr(one, name)) if one is not None else "-" for name in _FIGURES]
            table.add_row(head, *([_number(one)] if several else []), *cells)
            head = ""
    out.print()
    out.print(table)
    for line in _notes(ended, gpu):
        out.print(line, soft_wrap=True)


def _name(process: Process) -> str:
    """Its command line without the folders: what tells processes apart stands behind them."""
    if process.command is None:
        return "(left no report)"
    said = shlex.join(word.rpartition("/")[2] if word.startswith("/") else word for word in process.command)
    return " ".join(said.split())  # a program on the command line may have lines


def _number(one: OnGpu | None) -> str:
    return "-" if one is None or one.index is None else str(one.index)


def _notes(ended: Ended, gpu: GPU | None) -> Iterator[str]:
    for process in ended.processes:
        if process.oom is not None:
            yield _out_of_memory(process)
    if any(process.largest("max_allocated_bytes") is None for process in ended.processes):
        yield "- is unknown: the process was killed, or ran no Python that the hook could reach."
    for process in ended.processes:
        yield from _invented(process)
    if gpu is not None and prefers_cudnn(gpu.compute_capability):
        yield (
            f"On a real {gpu.name} torch prefers cuDNN's attention, whose workspace only the hardware's library knows: "
            "flash attention was played."
        )
    for path in ended.snapshots:
        yield f"snapshot: {path}"


def _out_of_memory(process: Process) -> str:
    tried = process.oom["tried_bytes"] if process.oom is not None else None
    what = f"tried to allocate {gib(tried)} GiB" if tried is not None else "it does not say what it tried"
    caught = process.oom is not None and process.oom["message"] is None
    return f"{process.pid} ran out of memory: {what}{'; it did not end of this error' if caught else ''}"


def _invented(process: Process) -> Iterator[str]:
    """Answers that no kernel computed: what the program did next may differ on a real GPU."""
    if not process.invented:
        return
    total = sum(times for _, times in process.invented)
    yield f"{process.pid} asked the phantom {total} times for what nobody computed:"
    for place, times in process.invented[:_ASKERS_SHOWN]:
        yield f"  {times:>6}  {place}"
    if len(process.invented) > _ASKERS_SHOWN:
        yield f"  and {len(process.invented) - _ASKERS_SHOWN} more places; --json lists them all"
