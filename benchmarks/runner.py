"""A list of cases -> measurements, one fresh process a case, resumable."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks.devices import Device, check
from nooom.benchmarks.models.zoo import Model, resolve_case
from nooom.formulas.case import Case
from nooom.formulas.config import language_part
from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.formulas.shape import ModelShape
from nooom.profiler import hardware
from nooom.profiler.child import Children, Outcome
from nooom.profiler.fingerprint import fingerprint
from nooom.profiler.instruments.cuda import ForkedError
from nooom.profiler.measurement import EXPLANATION, Measurement, Phase, phase_from_json
from nooom.profiler.phantom.launcher import Phantom

_WORKLOAD = "nooom.benchmarks.workloads.run:run"
_PRELOAD = ("torch", "torch.profiler", "transformers", "peft", "accelerate", "nooom.benchmarks.workloads.preload")
_FINISHED = ("ok", "oom")
"""Statuses that answer the question; a case that ended otherwise is run again by --resume."""

LIBRARIES = ("torch", "transformers", "peft", "accelerate")
"""A record answers for a case only where these are the versions it was made with."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A case whose model is known and which the device can run."""

    case: Case
    model: Model
    shape: ModelShape

    @property
    def case_id(self) -> str:
        key = self.model.key
        if self.case.pretrained and key is not None:
            key += _weights_key(self.model)
        return self.case.case_id(key)


@dataclass(frozen=True, kw_only=True)
class Options:
    timeout_s: float = 1800.0
    trust_remote_code: bool = False
    attribute: bool = False
    """Run each case once more, to say what its peaks are made of."""
    fork: bool | None = None
    on_case: Callable[[Planned], None] = lambda planned: None
    on_phase: Callable[[str], None] = lambda phase: None
    on_log: Callable[[str], None] = lambda log: None
    deadline: float | None = None
    """When nothing runs any more, in ``time.monotonic()``'s seconds."""
    estimate: Callable[[Planned], float] = lambda planned: 0.0
    """How many seconds a case will take: one that would not be over by the deadline isn't started."""
    prepare: Callable[[Planned], Planned] = lambda planned: planned
    """Called right before a case begins, for what must lie on the disk by then."""

    def left_s(self) -> float:
        return math.inf if self.deadline is None else self.deadline - time.monotonic()


def plan(cases: Iterable[Case], device: Device, *, write_checkpoints: bool = False) -> list[Planned]:
    """Resolve every case's model and check it, before anything runs: a typo in the last case costs no hour.

    Args:
        cases: what is to be run.
        device: where.
        write_checkpoints: a zoo model's checkpoint will be written before it is loaded.

    Raises:
        UsageError: an unknown model, a config that is none, a case that the model or the device can't run.
    """
    planned = []
    for case in cases:
        check(case, device)
        model, shape = resolve_case(case)
        _check_with_model(case, model, write_checkpoints)
        known = case if model.key is not None else dataclasses.replace(case, model=model.name)
        planned.append(Planned(case=known, model=model, shape=shape))
    return list({item.case_id: item for item in planned}.values())  # a case that stands there twice runs once


def is_written_first(item: Planned) -> bool:
    """Whether its checkpoint, of random weights, is one that the run writes: a zoo name is a config alone."""
    return bool(item.case.pretrained) and item.model.key is None


def _check_with_model(case: Case, model: Model, write_checkpoints: bool) -> None:
    if case.pretrained and "text_config" in model.config:
        raise UsageError(
            f"{case.model} is multimodal: --pretrained is not built yet, without it its language model runs"
        )
    if case.pretrained and not _weights(model) and not (write_checkpoints and model.key is None):
        where = model.directory or "a zoo name, which is a config alone"
        raise UsageError(f"--pretrained: no *.safetensors in {where}; give --model the directory of a checkpoint")


def _weights_key(model: Model) -> str:
    """Tells checkpoints of one architecture apart: by their files' names and sizes."""
    listed = ",".join(f"{file.name}:{file.stat().st_size}" for file in _weights(model))
    return ":" + hashlib.sha256(listed.encode()).hexdigest()[:16]


def _weights(model: Model) -> list[Path]:
    """The files of a local checkpoint; none for a config alone."""
    return sorted(model.directory.glob("*.safetensors")) if model.directory else []


def run(planned: Iterable[Planned], device: Device, options: Options) -> Iterator[Measurement]:
    """Measure each case in turn.  What happens to one case never stops the next; ^C ends the child and is raised."""
    children: Children | None = None
    allocator: str | None = None
    played = Phantom(device.gpu, 1 + (device.index or 0)) if device.name == "phantom" and device.gpu else None
    try:
        for item in planned:
            if options.left_s() <= options.estimate(item):
                continue  # a shorter one may still be over in time
            # The allocator's settings are read once a process, so cases that differ in them need servers that do; a
            # simulated allocator is told its own.
            wanted = item.case.allocator if device.name != "dryrun" else ""
            if children is None or wanted != allocator:
                if children is not None:
                    children.close()
                allocator = wanted
                environment = _environment(allocator, device.visible)
                if played is not None:
                    environment = played.environment(environment)
                children = Children(_preload(item, device), environment, fork=options.fork)
            options.on_case(item)
            began = time.monotonic()
            limited = dataclasses.replace(options, timeout_s=max(min(options.timeout_s, options.left_s()), 0.1))
            record = _prepared_and_measured(item, device, children, limited)
            if record.status == "timeout" and options.left_s() <= 0:
                continue  # ended by the budget: it is left, and has not failed
            where = {} if device.index is None else {"gpu_index": device.index}
            took = {"wall_s": round(time.monotonic() - began, 2), **where}
            yield dataclasses.replace(record, fingerprint=record.fingerprint | took)
    finally:
        if children is not None:
            children.close()
        if played is not None:
            played.close()


def is_finished(record: Measurement) -> bool:
    return record.status in _FINISHED


def _prepared_and_measured(item: Planned, device: Device, children: Children, options: Options) -> Measurement:
    try:
        ready = options.prepare(item)
    except CannotMeasureError as error:  # a full disk, say: the cases that need nothing of it go on
        return _as_measurement(item, device, [Outcome(status="crashed", message=str(error))])
    return _measure(ready, device, children, options)


def _measure(item: Planned, device: Device, children: Children, options: Options) -> Measurement:
    outcomes = []
    for instrument in device.passes:
        job = _job(item, device, instrument, options)
        outcome = children.run(job, timeout_s=options.timeout_s, on_phase=options.on_phase)
        if _kind(outcome) == ForkedError.__name__ and children.stop_forking():
            outcome = children.run(job, timeout_s=options.timeout_s, on_phase=options.on_phase)
        outcomes.append(outcome)
        options.on_log(outcomes[-1].log)
        if _kind(outcome) in (CannotMeasureError.__name__, ForkedError.__name__):
            raise CannotMeasureError(outcomes[-1].message)  # a busy GPU, say: no case after this one would fare better
        if outcomes[-1].status != "ok":
            break
    record = _as_measurement(item, device, outcomes)
    if not options.attribute or device.attributing is None or record.status not in _FINISHED:
        return record
    job = _job(item, device, device.attributing, options)
    second = children.run(job, timeout_s=options.timeout_s, on_phase=options.on_phase)
    options.on_log(second.log)
    return _attributed(record, second)


def _kind(outcome: Outcome) -> str | None:
    """Of the error that a child ended with."""
    kind: str | None = (outcome.answer.get("error") or {}).get("kind")
    return kind


def _attributed(record: Measurement, second: Outcome) -> Measurement:
    """The measurement, with what the second pass says of its peaks; every figure stays as it was measured."""
    found = {phase.name: phase for phase in _phases(second, "phases")}
    phases = [
        dataclasses.replace(phase, **{name: getattr(found[phase.name], name) for name in EXPLANATION})
        if phase.name in found
        else phase
        for phase in record.phases
    ]
    alive = {name: value for name, value in (second.answer.get("error") or {}).items() if name in EXPLANATION}
    error = {**record.error, **alive} if record.error is not None else None
    note: dict[str, Any] = {"scratch": second.answer.get("notes", {}).get("scratch", [])}
    if second.status != record.status:
        note["attribution"] = f"{second.status}: {second.message}"
    return dataclasses.replace(record, phases=phases, error=error, fingerprint=record.fingerprint | note)


def _job(item: Planned, device: Device, instrument: str, options: Options) -> dict[str, Any]:
    return {
        "workload": _WORKLOAD,
        "arguments": {
            "case": item.case.to_dict(),
            "config": language_part(item.model.config),
            "directory": str(item.model.directory) if item.model.directory else None,
            "trust_remote_code": options.trust_remote_code,
        },
        "instrument": instrument,
        "instrument_options": _instrument_options(item, device),
        "threads": device.threads,
        "memory_limit_bytes": hardware.available_bytes() if device.name == "cpu" else None,
    }


def _instrument_options(item: Planned, device: Device) -> dict[str, Any]:
    """What a dry run's instrument is told; the others find out for themselves."""
    if device.name != "dryrun" or device.gpu is None:
        return {}
    gpu = device.gpu
    return {
        "gpu": gpu.name,
        "total_bytes": gpu.total_bytes,
        "allocator": item.case.allocator,
        "capped": device.capped,
        "snapshot": device.snapshot,
    }


def _as_measurement(item: Planned, device: Device, outcomes: list[Outcome]) -> Measurement:
    main, *others = outcomes
    notes = main.answer.get("notes", {})
    phases = _phases(main, "phases")
    for other in others:
        phases = _with_second_pass(phases, _phases(other, "phases"))
    failed = next((outcome for outcome in outcomes if outcome.status != "ok"), None)
    return Measurement(
        case_id=item.case_id,
        case=item.case.to_dict(),
        source=device.source,
        device=device.name,
        gpu=notes.get("gpu"),
        status=failed.status if failed else "ok",
        weights="pretrained" if item.case.pretrained and not is_written_first(item) else "random",
        phases=phases,
        first=_first(main, others),
        retries=main.answer.get("retries"),
        sampling=notes.get("sampling"),
        error=_error(failed) if failed else None,
        fingerprint=fingerprint(
            {**notes, **main.answer.get("facts", {})}, allocator=item.case.allocator, cpu_threads=device.threads
        ),
    )


def _first(main: Outcome, others: list[Outcome]) -> dict[str, Any] | None:
    if not main.answer.get("first"):
        return None
    phases = _phases(main, "first")
    for other in others:
        phases = _with_second_pass(phases, _phases(other, "first"))
    return {"phases": [dataclasses.asdict(phase) for phase in phases]}


def _phases(outcome: Outcome, key: str) -> list[Phase]:
    return [phase_from_json(item) for item in outcome.answer.get(key, [])]


def _with_second_pass(phases: list[Phase], second: list[Phase]) -> list[Phase]:
    """RSS and seconds come from the pass that has no profiler in it."""
    by_name = {phase.name: phase for phase in second}
    merged = []
    for phase in phases:
        other = by_name.get(phase.name)
        seen: dict[str, Any] = (
            {} if other is None else {"rss_peak_bytes": other.rss_peak_bytes, "seconds": other.seconds}
        )
        merged.append(dataclasses.replace(phase, **seen))
    return merged


def _error(outcome: Outcome) -> dict[str, Any]:
    details = dict(outcome.answer.get("error") or {})
    phase = outcome.answer.get("phase") or outcome.phase
    return {"kind": outcome.status, **details, "message": outcome.message, "phase": phase}


def _environment(allocator: str, visible: str | None = None) -> dict[str, str]:
    """The children's: this process's, with what would change a measurement behind the case's back taken out."""
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_ALLOC_CONF")}
    environment |= {
        "HF_HUB_OFFLINE": "1",  # a case never waits for a network
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "KINETO_LOG_LEVEL": "99",
        # transformers converts a checkpoint's dtype in plain Python threads, whose allocations the profiler can't see.
        "HF_DEACTIVATE_ASYNC_LOAD": "1",
        # Threads that wait by spinning take a core each: with another process on the machine, steps of 0.5 s took 18.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONWARNINGS": "ignore",
    }
    if allocator:
        environment["PYTORCH_ALLOC_CONF"] = allocator
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return environment


def _preload(item: Planned, device: Device) -> list[str]:
    own = ["nooom.profiler.simulator.trace"] if device.name == "dryrun" else []
    return [*_PRELOAD, *own, f"{_family(item.shape.model_type)}?"]


def _family(model_type: str) -> str:
    """The module of an architecture, e.g. transformers.models.llama.modeling_llama."""
    module = {"gemma3_text": "gemma3"}.get(model_type, model_type)
    return f"transformers.models.{module}.modeling_{module}"
