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
