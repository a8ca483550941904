"""``make bench``: what nooom's own work costs, as ratios within one run, written to results/bench.md.

Ratios, because machines differ and this one may be busy: each figure is divided by one taken beside it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nooom.benchmarks import devices, runner
from nooom.formulas.case import Case
from nooom.profiler.child import Children

ROOT = Path(__file__).resolve().parents[1]
MODEL = "HuggingFaceTB/SmolLM2-135M"
GENERATE = Case(model=MODEL, workload="inference", seq=16, new_tokens=16, steps=2)


def median_s(work: Callable[[], Any], times: int = 5) -> float:
    """Median wall time over some repetitions after one that is not counted."""
    work()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def python(*arguments: str) -> Callable[[], Any]:
    return lambda: subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)


def command_rows() -> list[tuple[str, str, float]]:
    bare = median_s(python("-c", "pass"))
    rows = [("`python -c pass`", "1 (the unit of these six)", bare)]
    for name, arguments in (
        ("`import nooom.formulas.article`", ("-c", "import nooom.formulas.article")),
        ("`nooom --help`", ("-m", "nooom", "--help")),
        ("`nooom doctor --json`", ("-m", "nooom", "doctor", "--json")),
        ("`nooom predict --by article`", ("-m", "nooom", "predict", "--model", MODEL, "--workload", "sft", "--json")),
        ("`nooom validate --claims --json`", ("-m", "nooom", "validate", "--claims", "--json")),
    ):
        taken = median_s(python(*arguments))
        rows.append((name, f"{taken / bare:.1f}", taken))
    return rows


def child_rows() -> list[tuple[str, str, float]]:
    """A case's process beside its own work: started by fork, and as a new interpreter."""
    (planned,) = runner.plan([Case(model=MODEL, workload="inference", seq=1, steps=1)], devices.CPU)
    job = runner._job(planned, devices.CPU, devices.CPU.passes[1], runner.Options())
    rows, taken = [], {}
    for fork in (True, False):
        with Children(runner._preload(planned, devices.CPU), runner._environment(""), fork=fork) as children:
            taken[fork] = statistics.median([_overhead_s(children, job) for _ in range(4)][1:])
    rows.append(("a forked child, beside the case's own work", "1 (the unit of these two)", taken[True]))
    rows.append(("a new interpreter for each case", f"{taken[False] / taken[True]:.0f}", taken[False]))
    return rows


def _overhead_s(children: Children, job: dict[str, Any]) -> float:
    """Wall time of one case less what its phases took."""
    began = time.perf_counter()
    answer = children.run(job, timeout_s=300).answer
    taken = time.perf_counter() - began
    return taken - sum(phase["seconds"] for phase in [*answer["phases"], *answer["first"]])


def instrument_rows() -> list[tuple[str, str, float]]:
    """Generating with the CPU instrument on and off, in children of one server."""
    (planned,) = runner.plan([GENERATE], devices.CPU)
    taken = {}
    with Children(runner._preload(planned, devices.CPU), runner._environment("")) as children:
        for path in reversed(devices.CPU.passes):
            job = runner._job(planned, devices.CPU, path, runner.Options())
            phases = children.run(job, timeout_s=300).answer["phases"]
            taken[path.rpartition(":")[2]] = next(p["seconds"] for p in phases if p["name"] == "decode")
    off, on = taken["RssInstrument"], taken["CpuInstrument"]
    return [
        ("16 tokens of SmolLM2-135M, instrument off", "1 (the unit of these two)", off),
        ("the same with the allocator's events", f"{on / off:.1f}", on),
    ]


TAKEN = """
import json, sys
from nooom.benchmarks import devices, runner
from nooom.formulas.case import Case
from nooom.formulas.gpus import find
device = devices.choose("phantom", find("a100-80gb"))
case = Case(model=sys.argv[1], workload="sft", batch=4, seq=1024)
played = runner.Phantom(device.gpu)
(planned,) = runner.plan([case], device)
found = []
with runner.Children(runner._preload(planned, device), played.environment(runner._environment(""))) as children:
    for path in (device.passes[0], device.passes[0], device.attributing):
        phases = children.run(runner._job(planned, device, path, runner.Options()), timeout_s=300).answer["phases"]
        found.append([sum(p["seconds"] for p in phases), [p["peak_allocated_bytes"] for p in phases]])
played.close()
print(json.dumps(found))
"""


def attribution_rows() -> list[tuple[str, str, float]]:
    """A step with the tracer and without, in time and in what it adds to the worst phase's peak."""
    (planned,) = runner.plan([Case(model=MODEL, workload="sft", batch=2, seq=128, dtype="fp32")], devices.CPU)
    found = []
    with Children(runner._preload(planned, devices.CPU), runner._environment("")) as children:
        for path in (devices.CPU.passes[0], devices.CPU.passes[0], str(devices.CPU.attributing)):
            job = runner._job(planned, devices.CPU, path, runner.Options())
            phases = children.run(job, timeout_s=600).answer["phases"]
            found.append([sum(p["seconds"] for p in phases), [p["peak_allocated_bytes"] for p in phases]])
    rows = _attributed("on the CPU, sft 2x128", found)
    cuda = ROOT / ".venv-cuda" / "bin" / "python"
    if cuda.exists():
        done = subprocess.run([cuda, "-c", TAKEN, MODEL], cwd=ROOT, check=True, capture_output=True, text=True)
        rows += _attributed("on a phantom, sft 4x1024", json.loads(done.stdout))
    return rows


def _attributed(what: str, found: list[Any]) -> list[tuple[str, str, float]]:
    """Of three passes: the first warms up, the second is plain, the third traced."""
    (plain_s, plain), (traced_s, traced) = found[1:]
    moved = max((abs(b / a - 1) for a, b in zip(plain, traced, strict=True)), default=0.0)
    return [
        (f"SmolLM2-135M {what}: its peaks measured", "1 (the unit of these two)", plain_s),
        (
            f"the same taken apart; no phase's peak moves by more than {moved:.3%}",
            f"{traced_s / plain_s:.1f}",
            traced_s,
        ),
    ]


def check_rows() -> list[tuple[str, str, float]]:
    """The gate over two sets of 1,000 and of 4,000 cases: whole commands, reports written."""
    taken = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in (1_000, 4_000):
            cases = [Case(model=MODEL, workload="sft", seq=number) for number in range(1, count + 1)]
            records = [_record(case, number) for number, case in enumerate(cases)]
            for name, grown in (("baseline", 0), ("current", 7)):
                # Every seventh has grown, with what it grew by: what is said of a case costs more than that it passes.
                lines = [json.dumps(_grown(record, grown)) for record in records]
                (Path(folder) / f"{name}-{count}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            sets = [f"--{name}={folder}/{name}-{count}.jsonl" for name in ("baseline", "current")]
            command = [sys.executable, "-m", "nooom", "check", *sets, "--out", f"{folder}/out", "--json"]

            def run(command: list[str] = command) -> None:
                done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
                assert done.returncode == 1, done.stderr

            taken[count] = median_s(run, times=3)
    each = (taken[4_000] - taken[1_000]) / 3
    return [
        ("`nooom check`, 1,000 cases of 4 phases", "1 (the unit of these two)", taken[1_000]),
        (
            f"the same with 4,000 cases: 1,000 more take {each:.2f} s",
            f"{taken[4_000] / taken[1_000]:.1f}",
            taken[4_000],
        ),
    ]


def _record(case: Case, number: int) -> dict[str, Any]:
    """As a run writes it; each case as large as its number, and every tenth taken apart."""
    peaks = dict.fromkeys(("load", "forward", "backward", "optimizer"), number + 1 << 20)
    tensor = {"what": None, "category": "logits", "shape": [1, number], "dtype": "float32", "module": "lm_head"}
    apart = {
        "components": {"logits": (number + 1) << 20, "other": 0},
        "tensors": [{**tensor, "op": f"aten.op{n}", "site": "x.py:1", "bytes": 1000, "count": 1} for n in range(10)],
        "hidden": [],
    }
    phases = [
        {"name": name, "peak_allocated_bytes": size, **(apart if number % 10 == 0 else {})}
        for name, size in peaks.items()
    ]
    return {
        "schema_version": 1,
        "case_id": case.case_id(),
        "case": case.to_dict(),
        "source": "emulated",
        "device": "phantom",
        "status": "ok",
        "gpu": {"name": "NVIDIA A100-SXM4-80GB", "total_bytes": 85_100_068_864},
        "phases": phases,
        "fingerprint": {"torch": "2.13.0+cu130", "transformers": "5.24.0"},
    }


def _grown(record: dict[str, Any], every: int) -> dict[str, Any]:
    if not every or record["case"]["seq"] % every:
        return record
    phases = [{**phase, "peak_allocated_bytes": phase["peak_allocated_bytes"] + 512} for phase in record["phases"]]
    return {**record, "phases": phases}


CONTEXT = "import torch; torch.ones(1, device='cuda')"
PHANTOM = f"""
import os, subprocess, sys
from nooom.formulas.gpus import find
from nooom.profiler.phantom.launcher import Phantom
with Phantom(find("a100-80gb")) as phantom:
    subprocess.run([sys.executable, "-c", {CONTEXT!r}], env=phantom.environment(os.environ), check=True)
"""


def phantom_rows() -> list[tuple[str, str, float]]:
    """Starting on a phantom beside importing torch, and what one more case takes; nothing without the CUDA build."""
    cuda = ROOT / ".venv-cuda" / "bin" / "python"
    if not cuda.exists():
        return []

    def seconds(*arguments: str) -> float:
        return median_s(lambda: subprocess.run([cuda, *arguments], cwd=ROOT, check=True, capture_output=True), times=3)

    def suite_s(folder: str, count: int) -> float:
        suite, out = Path(folder) / f"{count}.toml", Path(folder) / "out"
        lengths = ", ".join(str(64 * number) for number in range(1, count + 1))
        suite.write_text(f'[[case]]\nmodel = "{MODEL}"\nworkload = "sft"\nseq = [{lengths}]\n', encoding="utf-8")
        flags = ("--device", "phantom", "--gpu", "a100-80gb", "--out", str(out))
        return seconds("-m", "nooom", "run", str(suite), *flags)

    bare, context, launcher = seconds("-c", "import torch"), seconds("-c", PHANTOM), seconds("-c", "import subprocess")
    with tempfile.TemporaryDirectory() as folder:
        each = (suite_s(folder, 6) - suite_s(folder, 1)) / 5
    return [
        ("`import torch`, its CUDA build", "1 (the unit of these two)", bare),
        ("a phantom, and a first tensor on it", f"{(context - launcher) / bare:.1f}", context - launcher),
        ("one more case on a phantom, SmolLM2-135M sft", f"{60 / each:.0f} cases a minute", each),
    ]


def main() -> None:
    rows = [*command_rows(), *check_rows(), *child_rows(), *instrument_rows(), *attribution_rows(), *phantom_rows()]
    lines = [
        "# What nooom's own work costs",
        "",
        "Made by `make bench`. Compare the ratios, each within one run; seconds are of the machine that ran it.",
        "",
        "| what | ratio | seconds |",
        "|---|--:|--:|",
        *(f"| {name} | {ratio} | {seconds:.3f} |" for name, ratio, seconds in rows),
        "",
    ]
    (ROOT / "results" / "bench.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
