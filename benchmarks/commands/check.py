"""``nooom check``: the gate."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from nooom.benchmarks import baselines, gate, sides
from nooom.benchmarks.journal import Entry
from nooom.benchmarks.reports.console import console as report_console
from nooom.benchmarks.reports.gate import annotations as github
from nooom.benchmarks.reports.gate import files, terminal
from nooom.benchmarks.reports.gate.about import About
from nooom.benchmarks.sides import Side
from nooom.benchmarks.streams import silence
from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.profiler.measurement import Measurement

SCHEMA_VERSION = gate.SCHEMA_VERSION
_CUDA = "measured on cuda"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    suite: str | None
    flags: Mapping[str, Any]
    baseline: Path | None
    current: Path | None
    device: str | None
    gpu: str | None
    gpu_memory: str | None
    environments: Sequence[Path]
    out: Path
    confirm: bool
    require_gpu: bool
    strict: bool
    timeout_s: float
    as_json: bool


def check(request: Request) -> int:
    """Compare, write the report, and say it; returns the exit code."""
    _refuse(request)
    console = Console(stderr=True, markup=False, highlight=False)

    def say(what: str) -> None:
        # A path or a label is anyone's text: nothing in it may begin a line of its own.
        console.print("".join(one if one.isprintable() else "?" for one in what), style="dim", soft_wrap=True)

    baseline, before, after = _sides(request, say)
    rows: list[gate.Row] = []
    for side in after:
        shown = side.name if len(after) > 1 else None
        rows += _judged(request, baseline, before, side, shown, say)
    report = gate.report(rows)
    code = _code(report, request)
    about = About(
        baseline=str(before.name if before is not None else request.baseline),
        current=", ".join(side.name for side in after),
        strict=request.strict,
        exit_code=code,
    )
    files.written(report, request.out, about)
    if request.baseline is not None:
        _propose(request, baseline, after, say)
    say(f"report in {request.out}")
    try:
        _show(request, report, about)
    except BrokenPipeError:  # whoever reads has read enough; the answer is the exit code all the same
        silence(sys.stdout)
    if code == 3:
        raise CannotMeasureError(_nothing(request, report))
    return code


def _show(request: Request, report: gate.Report, about: About) -> None:
    if request.as_json:
        print(json.dumps({**report.to_json(), "about": about.to_json()}, allow_nan=False))
    else:
        terminal.show(report, report_console(), about)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        # Read from both streams; with --json one of them is taken.
        print(
            *github.annotations(report, strict=request.strict),
            sep="\n",
            file=sys.stderr if request.as_json else sys.stdout,
        )
    sys.stdout.flush()


def _refuse(request: Request) -> None:
    """Raises UsageError where the request is not one comparison."""
    if request.baseline is None and len(request.environments) < 2:
        raise UsageError("compare with what? --baseline PATH, or two environments: --env A.txt --env B.txt")
    if request.baseline is not None and request.current is None and request.device is None and not request.environments:
        raise UsageError("compare what? --current PATH, or --device D to run the baseline's cases here and now")
    if request.current is not None and (request.device or request.environments):
        raise UsageError("--current is measured already; --device and --env measure now: give one of them")
    if request.current is not None and (request.suite or request.flags):
        raise UsageError("a suite and case flags say what to run; with --current nothing is run")
    if request.gpu is None and request.gpu_memory is not None:
        raise UsageError("--gpu-memory gives a played GPU another capacity: add --gpu NAME")
    _refuse_places(request)
    if request.environments and not (request.suite or request.flags):
        raise UsageError("--env: give a suite (such as smoke) or a case, which is run in each environment")


def _refuse_places(request: Request) -> None:
    """Raises UsageError where the check would write into what it reads, or compare a set with itself."""
    if request.baseline is None:
        return
    out, baseline = request.out.resolve(), request.baseline.resolve()
    current = request.current.resolve() if request.current is not None else None
    if current is not None and (current == baseline or baseline in current.parents):
        raise UsageError(f"--current {request.current} is, or lies in, --baseline: it would be compared with itself")
    for name, place in (("--baseline", baseline), ("--current", current)):
        if place is None:
            continue
        own = [parent for parent in (place, *place.parents) if parent.parent == out]
        written = any(
            folder.name in ("baseline", "current") or folder.name.startswith("environment-") for folder in own
        )
        if written or out == place or place in out.parents:
            raise UsageError(f"--out {request.out}: the check would write into {name}; give it a folder of its own")


def _sides(request: Request, say: Say) -> tuple[list[Entry], Side | None, list[Side]]:
    """The baseline; the side it is where it was run too; and the sides that are held against it."""
    if request.current is not None and request.baseline is not None:
        return gate.read_set(request.baseline), None, [sides.measured(request.current, lambda: _options(request))]
    asked = sides.Asked(
        suite=request.suite,
        flags=request.flags,
        device=_device(request),
        out=request.out,
        options=_options(request),
        say=say,
    )
    if request.environments:
        names = [path.name for path in request.environments]
        run = [
            sides.run_in(
                asked, path, _gpu_flags(request), f"environment-{number}-{path.stem}",
                path.name if names.count(path.name) == 1 else str(path),
            )
            for number, path in enumerate(request.environments, 1)
        ]  # fmt: skip
        if request.baseline is not None:
            known = gate.read_set(_of_suite(request.baseline, request.suite))
            return sides.of_asked(known, [record for side in run for record in side.records], asked), None, run
        first, *rest = run
        made = [Entry(file=request.environments[0], line=0, measurement=record) for record in first.records]
        return made, first, rest
    assert request.baseline is not None
    baseline, side = sides.run_here(asked, gate.read_set(_of_suite(request.baseline, request.suite)))
    return baseline, None, [side]


def _device(request: Request) -> Any:
    from nooom.benchmarks import devices
    from nooom.formulas.gpus import find
    from nooom.profiler import hardware

    gpu = find(request.gpu, request.gpu_memory) if request.gpu is not None else None
    device = devices.choose(request.device or "auto", gpu)
    if request.require_gpu and device.name != "cuda":
        raise CannotMeasureError(f"--require-gpu: this would run on {device.name}: {hardware.looked_for()}")
    return device


def _options(request: Request) -> Any:
    from nooom.benchmarks.runner import Options

    return Options(timeout_s=request.timeout_s)


def _gpu_flags(request: Request) -> list[str]:
    flags = ["--gpu", request.gpu] if request.gpu is not None else []
    return flags + (["--gpu-memory", request.gpu_memory] if request.gpu_memory is not None else [])


def _of_suite(baseline: Path, suite: str | None) -> Path:
    """The suite's own folder among the baselines, where there is one."""
    own = baseline / Path(suite).stem if suite is not None else baseline
    return own if own.is_dir() else baseline


def _judged(
    request: Request, baseline: Sequence[Entry], before: Side | None, side: Side, shown: str | None, say: Say
) -> Sequence[gate.Row]:
    known = [entry.measurement for entry in baseline]
    found = gate.compare(known, side.records, side=shown)
    doubts = _doubted(found, request.confirm)
    doubted = [record for record in side.records if gate.key(record) in doubts]
    # Without --confirm another run can only say what a peak is made of: that of a case which was taken apart is known.
    wanted = doubted if request.confirm else [one for one in doubted if side.was_run and not _is_apart(one)]
    if not wanted:
        return found.rows
    from nooom.benchmarks import repeats

    times = repeats.AGAIN if request.confirm else 1
    say(f"{len(wanted)} cases look worse: {'twice more' if request.confirm else 'once more, taken apart'}")
    runs, why = side.again(wanted, times)
    looked: dict[tuple[str, gate.Group], Measurement] = {}
    for record in wanted:
        others = runs.get(gate.key(record), [])
        # Without --confirm the figure stands: the other run says only what it is made of.
        looked[gate.key(record)] = (
            repeats.median([record, *others]) if request.confirm else repeats.explained(record, others)
        )
    side.records[:] = repeats.replaced(side.records, looked)
    if before is not None:
        old, _ = before.again([record for record in before.records if gate.key(record) in looked], 1)
        known = [repeats.explained(record, old.get(gate.key(record), ())) for record in before.records]
    notes = {which: f"could not be run again: {reason}" for which, reason in why.items()}
    return [_noted(row, notes) for row in gate.compare(known, side.records, side=shown).rows]


def _doubted(report: gate.Report, confirm: bool) -> set[tuple[str, gate.Group]]:
    """The cases worth another look."""
    states = ("regression", "oom", "error") if confirm else ("regression",)
    return {(row.case_id, row.group) for row in report.rows if row.state in states}


def _is_apart(record: Measurement) -> bool:
    return any(phase.components is not None for phase in record.phases)


def _noted(row: gate.Row, notes: Mapping[tuple[str, gate.Group], str]) -> gate.Row:
    which = (row.case_id, row.group)
    if which not in notes or row.state not in gate.FAILED:
        return row
    said = "; ".join(filter(None, [row.note, notes[which]]))
    return dataclasses.replace(row, note=said)


def _code(report: gate.Report, request: Request) -> int:
    code = report.exit_code(strict=request.strict)
    if not request.require_gpu:
        return code
    on_gpu = [row for row in report.rows if row.group.evidence == _CUDA]
    if not any(row.state in gate.COMPARED for row in on_gpu):
        return 3
    return max(code, int(any(row.state in gate.UNDECIDED for row in on_gpu)))


def _nothing(request: Request, report: gate.Report) -> str:
    if request.require_gpu and any(row.state in gate.COMPARED for row in report.rows):
        return "--require-gpu: nothing that was measured on cuda was compared"
    said = ", ".join(f"{count} {state}" for state, count in report.counts.items() if count)
    return f"nothing was compared: {said or 'no measurements'}"


def _propose(request: Request, baseline: Sequence[Entry], after: Sequence[Side], say: Say) -> None:
    """Write what the baseline would be, ready to be committed, below the report."""
    suite = baselines.suite_for(request.suite, baseline[0].file if baseline else None)
    clean = [record for record in after[0].records if not record.fingerprint.get("dirty")]
    if len(clean) < len(after[0].records):
        say("measured in a tree with uncommitted changes: no new baseline is proposed from it")
    folder = request.out / "baseline"
    for earlier in folder.glob("*/*/torch-*.jsonl"):  # another check's, of another suite perhaps
        earlier.unlink()
    try:
        baselines.write(folder, baselines.proposed(baseline, clean, suite))
    except UsageError as error:  # the verdict is worth more than the proposal
        say(f"no new baseline is proposed: {error}")
