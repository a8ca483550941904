"""``python -m nooom.benchmarks.campaign.rehearsal results``: the campaign played through on phantom GPUs.

For each Python (the pinned versions, and those that a machine with a GPU brings) and each GPU: three shards from a
plain checkout, one killed with -9 in the middle and resumed, one that spends its budget and is resumed, one straight
through; then ``gpu-results`` as a rehearsal.  FOLDER gets ``rehearsal.json`` and ``rehearsal.md``, and
``emulated/campaign/<versions>/<gpu>.jsonl``, which results of hardware are held against later.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks import cost, devices, oracle, runner
from nooom.benchmarks.campaign.collect import collect, versions
from nooom.benchmarks.journal import FILE_NAME, read
from nooom.benchmarks.sharding import shard
from nooom.benchmarks.suites.suite import load_suite
from nooom.formulas.case import Case
from nooom.formulas.errors import CannotMeasureError, NooomError
from nooom.formulas.gpus import find
from nooom.profiler.measurement import Measurement

SUITE = "h100"
SHARDS = 3
BUDGET = "9m"
GPUS = {"h100-80gb": 1, "h200-141gb": 2}
"""The GPUs that are played, and on how many of them the cases run at a time."""
PYTHONS = (Path(".venv-cuda/bin/python"), Path(".venv-2.11/bin/python"))
WORK = Path("build/rehearsal")
PAGE, FACTS, EMULATED = "rehearsal.md", "rehearsal.json", "emulated/campaign"
_KILLED_AFTER = 5
_SPENT = "60s"
_TRIES = 5
_LIMIT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard, played through."""

    versions: str
    gpu: str
    gpus: int
    shard: str
    cases: int
    ok: int
    oom: tuple[str, ...]
    """The cases that ran out of memory, by their labels."""
    failed: tuple[str, ...]
    estimated_s: int
    """On a real GPU, in the cost model."""
    took_s: int
    """Here, all runs together."""
    how: str
    """What happened to it."""


def parts(gpu: str) -> list[list[runner.Planned]]:
    """The suite's shards, as every machine deals them."""
    device = devices.choose("phantom", find(gpu))
    planned = runner.plan(load_suite(SUITE, device.name).cases, device, write_checkpoints=True)
    return [
        shard(planned, f"{k}/{SHARDS}", lambda item: cost.seconds(item.case, item.shape)) for k in range(1, SHARDS + 1)
    ]


def play(python: Path, gpu: str, k: int, cases: int, out: Path) -> str:
    """Run one shard of so many cases to its end, through what may happen to it; returns what did.

    Raises:
        CannotMeasureError: a run that could not measure, with what it said.
    """
    how = "straight through"
    if k == 1:
        _killed(_start(python, gpu, k, out), out)
        how = f"killed with -9 after {_lines(out)} cases, resumed"
    if k == 2:
        _once(python, gpu, k, out, budget=_SPENT)
        how = f"a budget of {_SPENT} was spent after {_lines(out)} cases, resumed"
    for again in range(_TRIES):
        _once(python, gpu, k, out)
        if _lines(out) >= cases:  # a phantom on a slow machine may want more time than a GPU
            return how + f"; {BUDGET} spent, resumed" * again
    return f"{how}; not over after {_TRIES} times {BUDGET}"


def _lines(out: Path) -> int:
    return len(list(read(out)))


def _start(python: Path, gpu: str, k: int, out: Path, budget: str = BUDGET) -> subprocess.Popen[str]:
    words = ["run", SUITE, "--device", "phantom", "--gpu", gpu, "--gpus", str(GPUS[gpu]), "--shard", f"{k}/{SHARDS}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.Popen(
        [python, "-m", "benchmarks", *words, "--out", str(out), "--resume", "--budget", budget],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _killed(process: subprocess.Popen[str], out: Path) -> None:
    journal, deadline = out / FILE_NAME, time.monotonic() + _LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b"\n") >= _KILLED_AFTER:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def _once(python: Path, gpu: str, k: int, out: Path, budget: str = BUDGET) -> None:
    process = _start(python, gpu, k, out, budget)
    _, said = process.communicate(timeout=_LIMIT_S)
    if process.returncode not in (0, 1):  # 1: a case failed, which the page will say
        raise CannotMeasureError(f"shard {k} on {gpu} with {python}: {said.strip().splitlines()[-1]}")


def rehearse(python: Path, gpu: str) -> Iterator[Shard]:
    """Every shard on one GPU with one Python."""
    for k, part in enumerate(parts(gpu), 1):
        out = WORK / python.parts[0] / gpu / f"shard-{k}"
        began = time.monotonic()
        how = play(python, gpu, k, len(part), out)
        records = {record.case_id: record for record in read(out)}
        yield _as_shard(gpu, k, part, list(records.values()), time.monotonic() - began, how)


def _as_shard(
    gpu: str, k: int, part: Sequence[runner.Planned], records: Sequence[Measurement], took_s: float, how: str
) -> Shard:
    ended = {
        name: [Case.from_dict(one.case).label() for one in records if one.status == name] for name in ("ok", "oom")
    }
    finished = {record.case_id for record in records if runner.is_finished(record)}
    return Shard(
        versions=_named(records[0]),
        gpu=gpu,
        gpus=GPUS[gpu],
        shard=f"{k}/{SHARDS}",
        cases=len(part),
        ok=len(ended["ok"]),
        oom=tuple(ended["oom"]),
        failed=tuple(item.case.label() for item in part if item.case_id not in finished),
        estimated_s=round(cost.total(part)),
        took_s=round(took_s),
        how=how,
    )


def _named(record: Measurement) -> str:
    return "_".join(f"{name}-{value}" for name, value in versions(record).items())


def record(folders: Sequence[Path], results: Path) -> None:
    """Keep what the phantoms said, a line a case, as the oracle keeps it."""
    for gpu, records in collect(folders, rehearsal=True).items():
        target = results / EMULATED / _named(records[0]) / f"{gpu}.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        lines = sorted(oracle.written(one) for one in records if runner.is_finished(one))
        target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def gpu_results(python: Path, folders: Sequence[Path]) -> list[str]:
    """What ``make gpu-results REHEARSAL=1`` says of these outputs.  Raises CannotMeasureError where it fails."""
    command = [str(python), "-m", "nooom.benchmarks.campaign.results", "--rehearsal", *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode:
        raise CannotMeasureError(f"gpu-results with {python}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.splitlines()


def page(facts: Mapping[str, Any]) -> str:
    """The page, of what ``rehearsal.json`` holds."""
    lines = [
        "# The campaign, rehearsed",
        "",
        f"Made by `make rehearsal`: `python -m benchmarks run {SUITE}` from a plain checkout, on phantom GPUs. No GPU",
        "took part: peaks are emulated, and *on a GPU* is the cost model's estimate of a shard's time on a real",
        f"{cost.GPU}. [How to fire it](../docs/campaign.md).",
    ]
    shards = [Shard(**{**item, "oom": tuple(item["oom"]), "failed": tuple(item["failed"])}) for item in facts["shards"]]
    for name in dict.fromkeys(item.versions for item in shards):
        of = [item for item in shards if item.versions == name]
        lines += ["", f"## {name.replace('_', ', ').replace('-', ' ')}", ""]
        lines += ["| GPU | shard | cases | ok | oom | failed | on a GPU | here | what happened to it |"]
        lines += ["|---|---|--:|--:|--:|--:|--:|--:|---|", *map(_row, of), ""]
        oom = Counter(f"{label} ({item.gpu})" for item in of for label in item.oom)
        lines += [f"Out of memory, as the suite expects: {'; '.join(sorted(oom)) or 'none'}.", ""]
        lines += [f"`make gpu-results REHEARSAL=1` on these outputs: {facts['gpu_results'][name]}."]
    return "\n".join(lines) + "\n"


def _row(item: Shard) -> str:
    gpu = item.gpu if item.gpus == 1 else f"{item.gpus} x {item.gpu}"
    times = f"{cost.said(item.estimated_s / item.gpus)} | {cost.said(item.took_s)}"
    figures = f"{item.cases} | {item.ok} | {len(item.oom)} | {len(item.failed)}"
    return f"| {gpu} | {item.shard} | {figures} | {times} | {item.how} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nooom.benchmarks.campaign.rehearsal", description=__doc__)
    parser.add_argument("results", type=Path, help="where the page goes, e.g. results")
    parser.add_argument("--python", action="append", type=Path, help="of an environment with torch's CUDA build")
    given = parser.parse_args(arguments)
    shards: list[Shard] = []
    said: dict[str, str] = {}
    try:
        for python in given.python or [path for path in PYTHONS if path.exists()]:
            for gpu in GPUS:
                for item in rehearse(python, gpu):
                    shards.append(item)
                    print(_row(item), file=sys.stderr, flush=True)
            folders = [WORK / python.parts[0] / gpu for gpu in GPUS]
            record(folders, given.results)
            said[shards[-1].versions] = "; ".join(line for line in gpu_results(python, folders) if "cases," in line)
    except NooomError as error:
        print(f"nooom: {error}", file=sys.stderr)
        return error.exit_code
    facts = {"suite": SUITE, "gpu_results": said, "shards": [dataclasses.asdict(item) for item in shards]}
    (given.results / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (given.results / PAGE).write_text(page(json.loads(json.dumps(facts))), encoding="utf-8")
    return 1 if any(item.failed for item in shards) else 0


if __name__ == "__main__":
    sys.exit(main())
