"""``nooom run``: measure our cases."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from nooom.benchmarks import cost, devices, runner, several, sources
from nooom.benchmarks.checkpoints import Checkpoints
from nooom.benchmarks.journal import Journal, JournalError, read
from nooom.benchmarks.sharding import shard
from nooom.benchmarks.suites.suite import asked_for
from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import find
from nooom.formulas.shape import ModelShape
from nooom.profiler import hardware
from nooom.profiler.measurement import SCHEMA_VERSION, Measurement

_FAILED = ("crashed", "timeout", "killed")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    suite: str | None
    flags: Mapping[str, Any]
    device: str
    gpu: str | None
    gpu_memory: str | None
    gpus: str | None
    out: Path
    resume: bool
    shard: str | None
    budget: str | None
    timeout_s: float
    trust_remote_code: bool
    attribute: bool
    as_json: bool
    verbose: bool


def run(request: Request) -> int:
    """Measure, save each case as it finishes, and show the table; returns the exit code."""
    began = time.monotonic()
    console = Console(stderr=True, markup=False, highlight=False)
    if request.gpu is None and request.gpu_memory is not None:
        raise UsageError("--gpu-memory gives a played GPU another capacity: add --gpu NAME")
    gpu = find(request.gpu, request.gpu_memory) if request.gpu is not None else None
    device = devices.choose(request.device, gpu)
    used = devices.spread(device, request.gpus)
    suite = request.suite is not None
    whole = runner.plan(asked_for(request.suite, request.flags, device.name), device, write_checkpoints=suite)
    planned = shard(whole, request.shard, _estimate(device))
    with Journal(request.out) as journal:
        if journal.torn:
            console.print(
                f"a torn last line, left by a run that was killed, was moved to {journal.torn}", style="yellow"
            )
        earlier = _earlier(journal.path, planned, device, request.attribute) if request.resume else {}
        fresh = [item for item in planned if item.case_id not in earlier]
        if earlier:
            console.print(f"resuming: {len(planned) - len(fresh)} of {len(planned)} cases were finished before")
        deadline = began + seconds(request.budget, "--budget") if request.budget else None
        if suite and _is_estimated(device):
            console.print(_announced(request, device, fresh, len(used)), soft_wrap=True)
        done: dict[str, Measurement] = {}
        unsaved: JournalError | None = None
        try:
            with Checkpoints(lambda what: console.print(f"  writing a checkpoint of {what}")) as checkpoints:
                _measure(fresh, used, request, journal, console, deadline, done, checkpoints)
        except JournalError as error:
            unsaved = error
    shapes = {item.case_id: item.shape for item in planned}
    records = [found for item in planned if (found := done.get(item.case_id) or earlier.get(item.case_id))]
    if unsaved is not None:
        _show(records, request, shapes)  # what could not be saved is at least said
        raise unsaved
    console.print(f"saved in {journal.path}", style="dim", soft_wrap=True)
    if len(done) < len(fresh):
        console.print(f"budget spent: {len(fresh) - len(done)} cases left; run again with --resume", style="yellow")
    _show(records, request, shapes)
    return 1 if any(record.status in _FAILED for record in records) else 0


def _is_estimated(device: devices.Device) -> bool:
    """Whether somebody has estimated how long cases take there."""
    return device.name in ("cuda", "phantom")


def _estimate(device: devices.Device) -> Callable[[runner.Planned], float]:
    """Seconds that a case takes on a GPU; elsewhere all are alike."""
    return (lambda item: cost.seconds(item.case, item.shape)) if _is_estimated(device) else (lambda item: 1.0)


def _left_out(request: Request, device: devices.Device) -> Callable[[runner.Planned], float]:
    """Seconds that must be left of the budget for a case to be begun."""
    if not _is_estimated(device):
        return lambda item: 0.0
    return lambda item: _passes(request, device) * _estimate(device)(item)


def _passes(request: Request, device: devices.Device) -> int:
    """How many times as long a case takes that is run once more, watching every operation."""
    return 3 if request.attribute and device.attributing is not None else 1


def _announced(request: Request, device: devices.Device, fresh: Sequence[runner.Planned], gpus: int) -> str:
    part = f", shard {request.shard}" if request.shard else ""
    time = cost.said(cost.total(fresh) * _passes(request, device) / gpus)
    return f"{request.suite}{part}: {len(fresh)} cases, about {time} on {cost.GPU} (an estimate, on the slow side)"


def seconds(text: str, option: str) -> float:
    """``90``, ``90s``, ``9m`` or ``1h`` in seconds."""
    number, unit = (text[:-1], text[-1]) if text and text[-1] in "smh" else (text, "s")
    try:
        value = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise UsageError(f"{option} must be a time such as 90s, 9m or 1h, not {text!r}")
    return value


def _earlier(
    path: Path, planned: Sequence[runner.Planned], device: devices.Device, attributed: bool
) -> dict[str, Measurement]:
    """Finished records of these cases, made on such a device with the libraries that are installed now.

    ``attributed``: only those that say what their peaks are made of.
    """
    from nooom.profiler.fingerprint import fingerprint

    now = fingerprint({})
    wanted = {item.case_id for item in planned}
    found = {}
    for record in read(path.parent):  # other shards' too, where their folders were put there
        same = all(record.fingerprint.get(name) == now.get(name) for name in runner.LIBRARIES)
        explains = not attributed or record.status != "ok" or any(phase.components for phase in record.phases)
        finished = runner.is_finished(record) and explains
        if record.case_id in wanted and same and finished and _answers_for(record, device):
            found[record.case_id] = record
    return found


def _answers_for(record: Measurement, device: devices.Device) -> bool:
    """Whether it was made on such a device: on the same GPU, played or real, as far as its name is known."""
    if (record.source, record.device) != (device.source, device.name):
        return False
    if device.gpu is None:
        names = {gpu.name for gpu in hardware.find_gpus()} if device.name == "cuda" else set()
        return not names or record.gpu is None or record.gpu.get("name") in names
    return record.gpu == {"name": device.gpu.device_name, "total_bytes": device.gpu.total_bytes}


def _measure(
    planned: Sequence[runner.Planned],
    used: Sequence[devices.Device],
    request: Request,
    journal: Journal,
    console: Console,
    deadline: float | None,
    done: dict[str, Measurement],
    checkpoints: Checkpoints,
) -> None:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=len(planned))
        label = ""

        def on_case(item: runner.Planned) -> None:
            nonlocal label
            label = item.case.label()
            progress.update(task, description=label)

        def on_log(log: str) -> None:
            if request.verbose and log:
                print(log, file=sys.stderr)

        options = runner.Options(
            timeout_s=request.timeout_s,
            trust_remote_code=request.trust_remote_code,
            attribute=request.attribute,
            on_case=on_case,
            on_phase=lambda phase: progress.update(task, description=f"{label}: {phase}"),
            on_log=on_log,
            deadline=deadline,
            prepare=checkpoints.prepare,
            estimate=_left_out(request, used[0]),
        )
        for record in several.run(planned, used, options):
            done[record.case_id] = record
            journal.append(record)
            progress.advance(task)
            console.print(_line(record), soft_wrap=True, highlight=False)


def _line(record: Measurement) -> str:
    if record.status == "ok":
        return f"  ok  {record.label}: {(record.peak_allocated_bytes or 0) / 2**30:.3f} GiB"
    error = record.error or {}
    where = f" in {error['phase']}" if error.get("phase") else ""
    return f"  {record.status}{where}  {record.label}: {error.get('message')}"


def _dry_runs(request: Request, records: Sequence[Measurement]) -> list[Measurement]:
    """Dry runs that the output folder has, where something else ran now."""
    if all(record.source == sources.DRYRUN for record in records) or not request.out.is_dir():
        return []
    return [record for record in read(request.out) if record.source == sources.DRYRUN]


def _show(records: Sequence[Measurement], request: Request, shapes: Mapping[str, ModelShape]) -> None:
    if request.as_json:
        document = {"schema_version": SCHEMA_VERSION, "measurements": [record.to_json() for record in records]}
        print(json.dumps(document))
        return
    from nooom.benchmarks import recorded
    from nooom.benchmarks.compare import compare
    from nooom.benchmarks.frame import as_frame
    from nooom.benchmarks.reports import attribution
    from nooom.benchmarks.reports.console import console as report_console
    from nooom.benchmarks.reports.terminal import show

    console = report_console()
    rows = compare(as_frame(records), shapes=shapes)
    beside = recorded.beside(rows, recorded.apart(as_frame(_dry_runs(request, records)))[1])
    show(beside, console, ("article", sources.DRYRUN) if beside != rows else ("article",))
    for record in records:
        if request.attribute and attribution.there(record):  # a dry run's records say it unasked
            attribution.show(record, console)
    if any(record.case.get("checkpointing") is False for record in records):
        console.print(
            "Gradient checkpointing is off unless a case names it, as in the HF Trainer; TRL's configs turn it on.",
            soft_wrap=True,
        )
