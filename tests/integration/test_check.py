"""``nooom check`` from end to end on the CPU: mistakes are caught and named, and the unchanged is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import gate
from tests.support import injected

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, nooom_in: Any, small_config: dict[str, object]) -> Path:
    """A folder with the cases as they should be, measured and taken apart, in ``baseline``."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "config.json").write_text(json.dumps(small_config))
    (folder / "suite.toml").write_text(injected.suite(folder))
    done = nooom_in(folder, "run", "suite.toml", "--device", "cpu", "--attribute", "--out", "baseline")
    assert done.returncode == 0, done.stderr
    return folder


def with_mistakes(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "injected.py"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **injected.environment()},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.fixture(scope="module")
def mistaken(measured: Path) -> Path:
    """The same cases with a mistake in each but one, in ``current`` of the same folder."""
    done = with_mistakes(measured, "run", "suite.toml", "--device", "cpu", "--attribute", "--out", "current")
    assert done.returncode == 0, done.stderr
    return measured


@pytest.mark.slow
def test_each_mistake_is_caught_and_named(mistaken: Path, nooom_in: Any) -> None:
    sets = ("--baseline", "baseline", "--current", "current")
    done = nooom_in(mistaken, "check", *sets, "--out", "report", "--json", env={"GITHUB_ACTIONS": "true"})
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    injected.check(document)
    assert document == json.loads((mistaken / "report" / "report.json").read_text())
    assert document["about"]["exit_code"] == 1
    assert done.stderr.count("::error title=") == len(injected.MISTAKES)


@pytest.mark.slow
def test_a_new_baseline_lies_beside_the_report_unless_the_tree_is_dirty(mistaken: Path, nooom_in: Any) -> None:
    lines = (mistaken / "current" / "measurements.jsonl").read_text().splitlines()
    for dirty in (True, False):
        records = [{**json.loads(line), "fingerprint": {"torch": "2.13.0", "dirty": dirty}} for line in lines]
        folder, report = mistaken / f"dirty-{dirty}", mistaken / f"report-{dirty}"
        folder.mkdir()
        (folder / "measurements.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        done = nooom_in(mistaken, "check", "--baseline", "baseline", "--current", folder, "--out", report)
        assert done.returncode == 1, done.stderr
        (proposed,) = (report / "baseline").rglob("*.jsonl")
        sides = {json.loads(line)["fingerprint"].get("dirty") for line in proposed.read_text().splitlines()}
        assert ("no new baseline" in done.stderr) is dirty
        if not dirty:
            assert sides == {False}
            current = folder / "measurements.jsonl"
            again = nooom_in(mistaken, "check", "--baseline", report / "baseline", "--current", current)
            assert again.returncode == 0, again.stderr


def test_the_unchanged_passes_and_is_run_here(measured: Path, nooom_in: Any) -> None:
    flags = ("--model", measured, "--workload", "sft", "--batch", 2, "--dtype", "fp32", "--steps", 1)
    run = ("--device", "cpu", *flags, "--seq", injected.UNCHANGED)
    done = nooom_in(measured, "check", "--baseline", "baseline", *run, "--json", "--out", "here")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["counts"]["pass"] == len(document["rows"]) == 4
    assert (measured / "here" / "current" / "measurements.jsonl").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_nothing_is_flagged_in_200_repeats(tmp_path: Path, tiny_config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    command = [sys.executable, "-m", "tests.support.repeated", "201", "cpu", "", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1400)
    (first,) = gate.read_set(tmp_path / "1")
    for number in range(2, 202):
        (entry,) = gate.read_set(tmp_path / str(number))
        report = gate.compare([first.measurement], [entry.measurement])
        assert report.counts["pass"] == len(report.rows) == 4, (number, report.to_json())
