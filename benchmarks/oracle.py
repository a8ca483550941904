"""``python -m nooom.benchmarks.oracle results/emulated``: what a grid of cases takes on phantom GPUs, kept as files.

The grid is ``suites/oracle/``: each file is named after the GPU that its cases run on (``a100-80gb``, or
``a100-80gb@8GiB`` for one with another capacity).  ``FOLDER/<versions>/`` gets a file of the same name with one line a
case, sorted, and ``made_with.json``: the versions and the GPUs.  Nothing in them depends on when or where they were
made, so two runs agree byte for byte, and whoever predicts what these versions take can be held against them without
CUDA: :func:`load` reads them.  One case in four, and one of each model and workload, is also taken apart:
``components.py``.

A run that is stopped goes on where it was: finished cases wait in the folder ``--work`` until all are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks import components, devices, runner
from nooom.benchmarks.journal import FILE_NAME, Journal, read
from nooom.benchmarks.suites.suite import load_suite
from nooom.formulas.case import FLAGS, Case
from nooom.formulas.errors import NooomError, UsageError
from nooom.formulas.gpus import GPU, find
from nooom.profiler.fingerprint import fingerprint
from nooom.profiler.measurement import Measurement, Phase

SUITES = Path(__file__).with_name("suites") / "oracle"
MADE_WITH = "made_with.json"
FIGURES = (
    "peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "peak_requested_bytes", "end_allocated_bytes",
)  # fmt: skip
"""What a line says of a phase, in this order."""
CASES_LIMIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One case on one phantom GPU."""

    gpu: str
    """Its name in ``formulas/gpus.py``; after an ``@`` its capacity, where that is another."""
    case: Case
    status: str
    """``ok`` or ``oom``."""
    phases: dict[str, dict[str, int]]
    """Each phase's worst over load and the measured steps, by name: :data:`FIGURES`, in bytes."""
    first: dict[str, dict[str, int]]
    """The same of the warm-up step."""
    retries: int | None
    """Times that the allocator freed its cache to satisfy a request; None where memory ran out while loading."""
    oom_phase: str | None
    """Where memory ran out."""


def gpu_of(stem: str) -> GPU:
    """The GPU that a suite's file name says.  Raises UsageError for one that is not known."""
    name, _, memory = stem.partition("@")
    return find(name, memory or None)


def load(folder: Path) -> list[Recording]:
    """The recordings of one folder of versions, by GPU, each file in its order.

    Raises:
        UsageError: a line that is no recording, with its file and number.
    """
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                found.append(recording(file.stem, json.loads(line)))
            except (ValueError, KeyError, TypeError, UsageError) as error:
                raise UsageError(f"{file}:{number}: no recording: {error}") from error
    return found


def recording(gpu: str, line: Mapping[str, Any]) -> Recording:
    phases = {name: dict(zip(FIGURES, figures, strict=True)) for name, figures in line["phases"].items()}
    first = {name: dict(zip(FIGURES, figures, strict=True)) for name, figures in line["first"].items()}
    return Recording(
        gpu=gpu,
        case=Case.from_dict(line["case"]),
        status=line["status"],
        phases=phases,
        # A phase whose warm-up was as the steps after it stands there once.
        first={name: first.get(name, figures) for name, figures in phases.items() if name != "load"} | first,
        retries=line.get("retries", 0),
        oom_phase=line.get("in"),
    )


def written(record: Measurement) -> str:
    """The line of a record: what differs from a default, from 0, or from the steps after it.

    ``{"case": {flags that were given}, "status": "ok", "phases": {name: [figures]}, "first": {name: [figures]}}``, and
    ``"retries"`` where there were any; of ``oom`` also ``"in"``, the phase, and ``"tried_bytes"`` as PyTorch's message
    rounds it.
    """
    case = _case(record)
    phases = {phase.name: _figures(phase) for phase in record.phases}
    warm_up = [Phase(**phase) for phase in (record.first or {}).get("phases", ())]
    first = {phase.name: _figures(phase) for phase in warm_up if _figures(phase) != phases.get(phase.name)}
    line: dict[str, Any] = {"case": given_flags(case), "status": record.status, "phases": phases, "first": first}
    if record.retries != 0:
        line["retries"] = record.retries
    if record.error is not None:
        line |= {"in": record.error["phase"], "tried_bytes": record.error.get("tried_bytes")}
    return json.dumps(line, separators=(",", ":"))


def _figures(phase: Phase) -> list[int]:
    return [int(getattr(phase, name)) for name in FIGURES]


def given_flags(case: Case) -> dict[str, Any]:
    """The flags without which it would be another case."""
    plain: dict[str, Any] = {"model": case.model, "workload": case.workload}
    if case.full:
        plain["full"] = True
    if case.workload == "grpo":
        plain |= {"batch": case.batch, "group_size": case.group_size, "micro_batch": case.micro_batch}
    base = Case.from_dict(plain)
    flags = {name: getattr(case, name) for name in FLAGS}
    return {name: value for name, value in flags.items() if name in plain or value != getattr(base, name)}


def make(folder: Path, suites: Path, work: Path) -> Path:
    """Run what has not been run yet, then write the files; returns the folder of these versions.

    Raises:
        UsageError: a suite that is none, or that names an unknown GPU.
        CannotMeasureError: no CUDA build of torch, no compiler, or a machine with a GPU of its own.
        NooomError: a case that ended neither well nor out of memory: it is left out of the suite, with the reason.
    """
    stems = sorted(path.stem for path in suites.glob("*.toml"))
    if not stems:
        raise UsageError(f"{suites}: no suites (*.toml) in it")
    versions = {name: fingerprint({})[name] for name in runner.LIBRARIES}
    target = folder / "_".join(f"{name}-{version}" for name, version in versions.items())
    records = {stem: list(_records(stem, suites, work / target.name)) for stem in stems}
    apart = target / components.FOLDER
    apart.mkdir(parents=True, exist_ok=True)
    for stem in stems:
        _write(target / f"{stem}.jsonl", map(written, records[stem]))
        taken = [record for record in records[stem] if any(phase.components for phase in record.phases)]
        _write(apart / f"{stem}.jsonl", (components.written(given_flags(_case(record)), record) for record in taken))
    made_with = {"versions": versions, "figures": FIGURES, "gpus": {stem: _played(gpu_of(stem)) for stem in stems}}
    (target / MADE_WITH).write_text(json.dumps(made_with, indent=2) + "\n", encoding="utf-8")
    return target


def _write(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")


def _case(record: Measurement) -> Case:
    return Case.from_dict(record.case)


def _played(gpu: GPU) -> dict[str, Any]:
    """What the phantom was told of the GPU: another answer may move a figure."""
    return {
        "total_bytes": gpu.total_bytes,
        "context_bytes": gpu.context_bytes,
        "compute_capability": ".".join(map(str, gpu.compute_capability)),
        "sms": gpu.sms,
        "max_threads_per_sm": gpu.max_threads_per_sm,
    }


def _records(stem: str, suites: Path, work: Path) -> Iterator[Measurement]:
    device = devices.choose("phantom", gpu_of(stem))
    # Cases of one allocator stand together: another one takes another server, which takes seconds to start.
    cases = sorted(load_suite(str(suites / f"{stem}.toml"), device.name).cases, key=lambda case: case.allocator)
    planned = runner.plan(cases, device)
    out = work / stem
    done = {record.case_id: record for record in read(out / FILE_NAME)} if (out / FILE_NAME).is_file() else {}
    left = [item for item in planned if item.case_id not in done]
    apart = {planned[number].case_id for number in components.chosen([item.case for item in planned])}
    options = runner.Options(timeout_s=CASES_LIMIT_S, on_case=lambda item: _say(f"{stem}: {item.case.label()}"))
    plain = runner.run([item for item in left if item.case_id not in apart], device, options)
    attributed = runner.run(
        [item for item in left if item.case_id in apart], device, dataclasses.replace(options, attribute=True)
    )
    failed = []
    with Journal(out) as journal:
        for record in itertools.chain(plain, attributed):
            if "attribution" in record.fingerprint:
                failed.append(f"{_case(record).label()}: taking it apart: {record.fingerprint['attribution']}")
            if not runner.is_finished(record):
                failed.append(f"{_case(record).label()}: {(record.error or {}).get('message')}")
                _say(f"  {record.status}: {failed[-1]}")
                continue
            journal.append(record)
            done[record.case_id] = record
    if failed:
        raise NooomError(f"{stem}: {len(failed)} cases failed, the first: {failed[0]}")
    return (done[item.case_id] for item in planned)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nooom.benchmarks.oracle", description="Record the oracle's grid.")
    parser.add_argument("folder", type=Path, help="where the recordings lie, e.g. results/emulated")
    parser.add_argument("--suites", type=Path, default=SUITES, help="what is run: files named after GPUs")
    parser.add_argument("--work", type=Path, default=Path("build/oracle"), help="where finished cases wait")
    given = parser.parse_args(arguments)
    try:
        target = make(given.folder, given.suites, given.work)
    except NooomError as error:
        print(f"nooom: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(given.work)
    print(f"recorded in {target}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
