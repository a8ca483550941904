"""``nooom check`` on a phantom GPU: the same mistakes, to the byte."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import gate
from tests.support import injected

ROOT = Path(__file__).resolve().parents[2]
A100 = ("--device", "phantom", "--gpu", "a100-80gb")


@pytest.mark.slow
def test_each_mistake_is_caught_and_named(
    phantom_nooom: Any, cuda_python: str, work: Path, environment: Mapping[str, str]
) -> None:
    (work / "suite.toml").write_text(injected.suite(work))
    done = phantom_nooom("run", "suite.toml", *A100, "--attribute", "--out", "baseline")
    assert done.returncode == 0, done.stderr
    with_mistakes = subprocess.run(
        [
            cuda_python,
            str(ROOT / "tests" / "support" / "injected.py"),
            "check",
            "--baseline",
            "baseline",
            *A100,
            "--json",
        ],
        cwd=work,
        env={**environment, **injected.environment()},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert with_mistakes.returncode == 1, with_mistakes.stderr
    document = json.loads(with_mistakes.stdout)
    injected.check(document)
    assert {row["evidence"] for row in document["rows"]} == {"emulated on phantom"}
    assert {row["band_bytes"] for row in document["rows"]} == {0}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_nothing_is_flagged_in_200_repeats(cuda_python: str, work: Path, environment: Mapping[str, str]) -> None:
    command = [cuda_python, "-m", "tests.support.repeated", "201", "phantom", "a100-80gb", str(work)]
    subprocess.run(command, cwd=ROOT, env=dict(environment), check=True, timeout=1400)
    (first,) = gate.read_set(work / "1")
    for number in range(2, 202):
        (entry,) = gate.read_set(work / str(number))
        report = gate.compare([first.measurement], [entry.measurement])
        assert report.counts["pass"] == len(report.rows) == 4, (number, report.to_json())


GATE = ("check", "smoke", "--baseline", ROOT / "results" / "baselines", *A100, "--json")


def committed(cuda_python: str) -> None:
    """Skips where torch is another minor version than that of the committed baseline: nothing would be compared."""
    said = "import importlib.metadata as m; print(m.version('torch'))"
    found = subprocess.run([cuda_python, "-c", said], capture_output=True, text=True, check=True).stdout
    if not list((ROOT / "results" / "baselines").rglob(f"torch-{'.'.join(found.split('.')[:2])}.jsonl")):
        pytest.skip(f"no committed baseline of torch {found.strip()}: make baselines")


def test_this_projects_own_gate_with_one_case(phantom_nooom: Any, cuda_python: str) -> None:
    committed(cuda_python)
    sft = ("--model", "HuggingFaceTB/SmolLM2-135M", "--workload", "sft", "--seq", 16, "--steps", 1)
    done = phantom_nooom(GATE[0], *GATE[2:], *sft)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["pass"] == 4


@pytest.mark.slow
def test_this_projects_own_gate(phantom_nooom: Any, cuda_python: str) -> None:
    committed(cuda_python)
    done = phantom_nooom(*GATE)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["cases"]["pass"] == 8
    assert document["counts"]["pass"] == len(document["rows"])
