"""``python -m nooom.benchmarks.dry_run_against_emulated results``: the dry run beside the phantom GPU, case by case.

Every case of the oracle's recordings (``results/emulated``) is run dry for the same GPU in the same versions, and what
differs is written down: ``results/dryrun/emulated.jsonl`` keeps the dry runs, in the oracle's form, and
``results/dryrun/emulated.md`` what they say.  It goes on where it was stopped; ``--budget`` stops it.  Cases come in an
order of their own that has nothing to do with what they are, so that the first hundred are a fair sample.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks import devices, oracle, runner
from nooom.benchmarks.commands.run import seconds
from nooom.benchmarks.oracle import MADE_WITH, Recording
from nooom.formulas.case import Case
from nooom.formulas.errors import NooomError, UsageError
from nooom.profiler.measurement import Measurement

FOLDER = "dryrun"
LINES, PAGE = "emulated.jsonl", "emulated.md"
GOAL = 0.001
RESERVED_MEDIAN, RESERVED_WORST = 0.01, 0.03


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One phase of one case, run dry and on a phantom."""

    gpu: str
    case: Case
    phase: str
    allocated: tuple[int, int]
    """Peak bytes in the dry run, and on the phantom."""
    reserved: tuple[int, int]

    @property
    def error(self) -> float:
        return self.allocated[0] / self.allocated[1] - 1

    @property
    def reserved_error(self) -> float:
        return self.reserved[0] / self.reserved[1] - 1


def recordings(results: Path) -> list[Recording]:
    """The phantom's, of the versions that are pinned.

    Raises:
        UsageError: there are none, or not of one set of versions.
    """
    folders = sorted(path.parent for path in (results / "emulated").glob(f"*/{MADE_WITH}"))
    if len(folders) != 1:
        raise UsageError(f"{results / 'emulated'} has {len(folders)} sets of recordings; one is wanted: make oracle")
    return oracle.load(folders[0])


def run(results: Path, budget_s: float | None) -> None:
    """Run dry what has not been run yet, as far as the budget goes."""
    file = results / FOLDER / LINES
    file.parent.mkdir(parents=True, exist_ok=True)
    known = set(_dry(file))
    deadline = None if budget_s is None else time.monotonic() + budget_s
    left = sorted((one for one in recordings(results) if _key(one.gpu, one.case) not in known), key=_by_chance)
    running = {gpu: _records(gpu, [one.case for one in left if one.gpu == gpu]) for gpu in {one.gpu for one in left}}
    for one in left:
        if deadline is not None and time.monotonic() >= deadline:
            break
        record = next(running[one.gpu])
        if not runner.is_finished(record):
            print(f"{one.gpu}: {one.case.label()}: {(record.error or {}).get('message')}", file=sys.stderr)
            continue
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"gpu": one.gpu, **json.loads(oracle.written(record))}) + "\n")
    file.write_text("".join(sorted(file.read_text(encoding="utf-8").splitlines(keepends=True))), encoding="utf-8")


def _records(gpu: str, cases: Sequence[Case]) -> Iterator[Measurement]:
    """One after the other, as they are asked for."""
    device = devices.choose("dryrun", oracle.gpu_of(gpu))
    return runner.run(runner.plan(cases, device), device, runner.Options(timeout_s=oracle.CASES_LIMIT_S))


def _by_chance(one: Recording) -> str:
    return hashlib.sha256(repr(_key(one.gpu, one.case)).encode()).hexdigest()


def _key(gpu: str, case: Case) -> tuple[str, str]:
    return gpu, json.dumps(oracle.given_flags(case), sort_keys=True)


def _dry(file: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The dry runs that are there, by GPU and case."""
    if not file.is_file():
        return {}
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {_key(line["gpu"], Case.from_dict(line["case"])): line for line in lines}


def pairs(results: Path) -> Iterator[Pair]:
    """Each phase of each case that both have run, warm-up included; the phases before memory ran out, where it did."""
    dry = _dry(results / FOLDER / LINES)
    for one in recordings(results):
        line = dry.get(_key(one.gpu, one.case))
        if line is None:
            continue
        ours = oracle.recording(one.gpu, line)
        for prefix, mine, theirs in (("", ours.phases, one.phases), ("first ", ours.first, one.first)):
            for name in theirs.keys() & mine.keys():
                allocated, reserved = (
                    (mine[name][figure], theirs[name][figure])
                    for figure in ("peak_allocated_bytes", "peak_reserved_bytes")
                )
                yield Pair(gpu=one.gpu, case=one.case, phase=prefix + name, allocated=allocated, reserved=reserved)


def statuses(results: Path) -> tuple[int, list[str]]:
    """How many cases were run dry, and which of them ended otherwise than on the phantom."""
    dry = _dry(results / FOLDER / LINES)
    theirs = {_key(one.gpu, one.case): one for one in recordings(results)}
    other = [
        f"{key[0]} {theirs[key].case.label()}: {line['status']}, and {theirs[key].status} on the phantom"
        for key, line in dry.items()
        if key in theirs and (line["status"], line.get("in")) != (theirs[key].status, theirs[key].oom_phase)
    ]
    return len(dry.keys() & theirs.keys()), sorted(other)


def page(results: Path) -> str:
    """What the dry runs say, as Markdown."""
    found = list(pairs(results))
    if not found:
        raise UsageError(f"{results / FOLDER / LINES}: nothing has been run dry")
    cases, other = statuses(results)
    whole = len(recordings(results))
    lines = [
        "# The dry run beside the phantom GPU",
        "",
        f"`make dryrun-results`: {cases} of the {whole} recorded cases, in the same versions, for the same GPUs.  "
        f"`max_memory_allocated` of {len(found)} phases, warm-ups included; errors are (dry run - phantom) / phantom.",
        "",
        "| | phases | identical | within 0.1 % | worst | reserved: identical | median | worst |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups: dict[str, list[Pair]] = {"all": found}
    for pair in found:
        groups.setdefault(pair.gpu, []).append(pair)
        groups.setdefault(pair.case.workload, []).append(pair)
    lines += [_row(name, group) for name, group in groups.items()]
    missed = [pair for pair in found if abs(pair.error) > GOAL]
    lines += ["", _goals(found, missed), ""]
    lines += [f"- {text}" for text in other] or [
        "Every case ended as on the phantom: well, or out of memory in the same phase."
    ]
    different = [pair for pair in _worst_first(found) if pair.allocated[0] != pair.allocated[1]]
    if different:
        lines += ["", "## Not identical", "", _WHY, ""]
        lines += ["| GPU | case | phase | bytes | error | reserved |", "|---|---|---|--:|--:|--:|"]
        lines += [_difference(pair) for pair in different]
    return "\n".join(lines) + "\n"


_ALIKE = "Every case ended as on the phantom: well, or out of memory in the same phase."
_WHY = (
    "The requests of these cases are the phantom's own, one by one, where the phantom is watched operation by "
    "operation (`run --attribute`): watching makes Python hold an operation's arguments until it returns, on the "
    "phantom and in the dry run alike.  Unwatched, some temporaries are freed a moment earlier, other cached blocks "
    "are taken, and their unsplit tails of up to 1 MiB count as allocated.  The figures here were measured unwatched."
)


def _goals(found: Sequence[Pair], missed: Sequence[Pair]) -> str:
    same = sum(pair.allocated[0] == pair.allocated[1] for pair in found)
    reserved = sorted(abs(pair.reserved_error) for pair in found)
    near = statistics.median(reserved) <= RESERVED_MEDIAN and reserved[-1] <= RESERVED_WORST
    return (
        f"Goals: within 0.1 % everywhere: {f'missed in {len(missed)} of {len(found)} phases' if missed else 'held'}; "
        f"identical in half: {'held' if 2 * same >= len(found) else 'missed'} ({same / len(found):.1%}); "
        f"reserved within 1 % in the median and 3 % at worst: {'held' if near else 'missed'}."
    )


def _row(name: str, group: Sequence[Pair]) -> str:
    same = sum(pair.allocated[0] == pair.allocated[1] for pair in group)
    near = sum(abs(pair.error) <= GOAL for pair in group)
    reserved = sorted(abs(pair.reserved_error) for pair in group)
    alike = sum(pair.reserved[0] == pair.reserved[1] for pair in group)
    worst = max((pair.error for pair in group), key=abs)
    return (
        f"| {name} | {len(group)} | {same / len(group):.1%} | {near / len(group):.1%} | {worst:+.3%} | "
        f"{alike / len(group):.1%} | {statistics.median(reserved):.3%} | {reserved[-1]:.3%} |"
    )


def _difference(pair: Pair) -> str:
    return (
        f"| {pair.gpu} | {pair.case.label()} | {pair.phase} | {pair.allocated[0] - pair.allocated[1]:+,} | "
        f"{pair.error:+.4%} | {pair.reserved[0] - pair.reserved[1]:+,} |"
    )


def _worst_first(found: Iterable[Pair]) -> list[Pair]:
    return sorted(found, key=lambda pair: (-abs(pair.error), pair.gpu, pair.case.label(), pair.phase))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nooom.benchmarks.dry_run_against_emulated")
    parser.add_argument("results", type=Path, help="where emulated/ lies, e.g. results")
    parser.add_argument("--budget", help="how long to run at most, e.g. 20m")
    given = parser.parse_args(arguments)
    try:
        run(given.results, None if given.budget is None else seconds(given.budget, "--budget"))
        (given.results / FOLDER / PAGE).write_text(page(given.results), encoding="utf-8")
    except NooomError as error:
        print(f"nooom: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
