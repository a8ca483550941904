"""``nooom predict``: what each source says that a case takes, and whether that fits."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from nooom.benchmarks import sources
from nooom.benchmarks.models.zoo import resolve_case
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import GPU, find

SCHEMA_VERSION = 1
COMPONENTS = ("parameters", "gradients", "optimizer", "activations", "logits", "kv_cache", "inputs", "workspace",
              "rounding", "other")  # fmt: skip
"""The words for what memory is made of, in every prediction; null where a source says nothing of one."""


_ABSENT = {"inference": ("gradients", "optimizer"), "sft": ("kv_cache",), "lora": ("kv_cache",)}
"""What such a workload has none of, so that saying nothing of it is no gap."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    flags: Mapping[str, Any]
    gpu: str | None
    gpu_memory: str | None
    by: str | None
    estimators: Sequence[str]
    snapshot: Path | None
    as_json: bool


def predict(request: Request) -> int:
    """Predict and show; a case that does not fit has been answered too.  Returns the exit code."""
    for name in ("model", "workload"):
        if name not in request.flags:
            raise UsageError(f"--{name} is missing; nooom predict --model Qwen/Qwen2.5-7B --workload lora --batch 8")
    if request.gpu is None and request.gpu_memory is not None:
        raise UsageError("--gpu-memory gives a named GPU another capacity: add --gpu NAME")
    gpu = find(request.gpu, request.gpu_memory) if request.gpu is not None else None
    case = Case.from_dict(request.flags)
    run, by = sources.split(request.by)
    if run and gpu is None:
        if "all" not in (by or "").split(","):
            raise UsageError(f"--by {run[0]} plays a GPU: add --gpu NAME, e.g. --gpu a100-80gb")
        print(f"nooom: {', '.join(run)} left out: add --gpu NAME", file=sys.stderr)
    _check_snapshot(request, run if gpu is not None else ())
    asked = {} if run and by is None and not request.estimators else sources.sources(by, request.estimators)
    model, shape = resolve_case(case)
    if model.key is None and model.name != case.model:  # the zoo's own spelling
        case = Case.from_dict({**request.flags, "model": model.name})
    predictions = []
    for name, source in asked.items():
        began = time.perf_counter()
        said = source(case, shape)
        predictions.append(_as_json(name, said, case, gpu, time.perf_counter() - began))
    predictions += [_ran(which, case, gpu, request.snapshot) for which in run if gpu is not None]
    document = {
        "schema_version": SCHEMA_VERSION,
        "case": case.to_dict(),
        "gpu": None if gpu is None else _gpu(gpu),
        "predictions": predictions,
    }
    if request.as_json:
        print(json.dumps(document))
    else:
        from nooom.benchmarks.reports.prediction import show

        show(case.label(), document)
        if request.snapshot is not None:
            print(f"snapshot: {request.snapshot}")
    return 0


def _check_snapshot(request: Request, run: Sequence[str]) -> None:
    """Before anything takes time."""
    path = request.snapshot
    if path is None:
        return
    if sources.DRYRUN not in run:
        raise UsageError("--snapshot is what a dry run leaves: add --by dryrun and --gpu NAME")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--snapshot {path} is a folder, or lies in none that exists")


def _gpu(gpu: GPU) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "total_bytes": gpu.total_bytes,
        "context_bytes": gpu.context_bytes,
        "usable_bytes": gpu.usable_bytes,
        "source": gpu.source,
    }


def _ran(name: str, case: Case, gpu: GPU, snapshot: Path | None) -> dict[str, Any]:
    """The case is run, where the GPU is played."""
    from nooom.benchmarks import dry_run, emulation

    began = time.perf_counter()
    console = Console(stderr=True, markup=False, highlight=False)
    with console.status(f"{name}: starting") if console.is_terminal else contextlib.nullcontext() as status:

        def on_phase(phase: str) -> None:
            if status is not None:
                status.update(f"{name}: {phase}")

        if name == sources.DRYRUN:
            said = dry_run.predict(case, gpu, on_phase, snapshot)
        else:
            said = emulation.predict(case, gpu, on_phase)
    empty = _as_json(name, None, case, gpu, 0.0)
    return {**empty, **said, "seconds": round(time.perf_counter() - began, 3)}


def _as_json(name: str, said: sources.Prediction | None, case: Case, gpu: GPU | None, seconds: float) -> dict[str, Any]:
    allocated = None if said is None else said.allocated_bytes
    headroom = None if gpu is None or allocated is None else gpu.usable_bytes - allocated
    does_not_fit = headroom is not None and headroom < 0
    phases = {} if said is None else said.phases
    return {
        "source": name,
        "allocated_bytes": allocated,
        **dict.fromkeys(("reserved_bytes", "device_bytes", "low_bytes", "high_bytes")),
        "peak_phase": None if said is None else said.peak_phase,
        "peak_op": None,
        "phases": [
            {"name": phase, "peak_allocated_bytes": sum(parts.values()), "end_allocated_bytes": None}
            for phase, parts in phases.items()
        ],
        "components": {**dict.fromkeys(COMPONENTS), **(said.components if said else {})},
        "tensors": None,
        "fits": None if headroom is None else not does_not_fit,
        "headroom_bytes": headroom,
        # Arithmetic knows the phase that does not fit, not the request that would fail in it.
        "oom": {"phase": said.peak_phase, "op": None, "tried_bytes": None} if said and does_not_fit else None,
        "uncertainties": _uncertainties(name, said, case, gpu),
        "seconds": round(seconds, 6),
    }


def _uncertainties(name: str, said: sources.Prediction | None, case: Case, gpu: GPU | None) -> list[str]:
    if said is None:
        return [f"{name} says nothing about such a case"]
    known = {*said.components, *_ABSENT.get(case.workload, ())}
    missing = [component for component in COMPONENTS if component not in known]
    found = [f"{name} says nothing of {', '.join(missing)}"] if missing else []
    if gpu is not None and gpu.caveat is not None:
        found.append(gpu.caveat)
    return found
