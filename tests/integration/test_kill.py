"""kill -9 and ^C of a run: its children go with it, and what was finished is there for --resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def suite(tmp_path: Path, tiny_model: Path) -> Path:
    """A case that is over at once, and one that never is."""
    path = tmp_path / "mine.toml"
    path.write_text(
        f'[defaults]\nmodel = "{tiny_model}"\nworkload = "sft"\n'
        "[[case]]\nseq = 8\nsteps = 1\n[[case]]\nseq = 400\nbatch = 50\nsteps = 1000\n"
    )
    return path


@pytest.fixture
def run(suite: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The run, in its second case."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nooom", "run", str(suite), "--device", "cpu", "--out", str(tmp_path / "out")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test run that was started in the background may have been told to ignore ^C, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    journal = tmp_path / "out" / "measurements.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_text().count("\n") == 1) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    yield process
    process.kill()
    process.communicate()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def finished(tmp_path: Path) -> list[int]:
    return [json.loads(line)["case"]["seq"] for line in (tmp_path / "out" / "measurements.jsonl").open()]


def resumed(nooom: Any, suite: Path, tmp_path: Path) -> str:
    completed = nooom("run", suite, "--device", "cpu", "--out", tmp_path / "out", "--resume", "--shard", "1/2")
    assert completed.returncode == 0, completed.stderr
    return str(completed.stderr)


def test_kill_9_of_the_run_takes_its_children_along_and_loses_nothing(
    run: subprocess.Popen[str], nooom: Any, suite: Path, tmp_path: Path
) -> None:
    children = family(run)
    assert len(children) >= 2  # the server, and the case
    run.kill()
    _, alive = psutil.wait_procs(children, timeout=2)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    assert finished(tmp_path) == [8]
    assert "1 of 1 cases were finished before" in resumed(nooom, suite, tmp_path)


def test_interrupting_keeps_what_was_finished_and_is_exit_130(run: subprocess.Popen[str], tmp_path: Path) -> None:
    children = family(run)
    os.kill(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=20)
    assert run.returncode == 130
    assert errors.strip().splitlines()[-1] == "nooom: interrupted; everything finished so far is kept"
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=2)
    assert not alive
    assert finished(tmp_path) == [8]


def test_kill_9_of_the_case_is_its_status_and_the_run_goes_on(
    nooom: Any, run: subprocess.Popen[str], tmp_path: Path
) -> None:
    server = next(child for child in psutil.Process(run.pid).children() if child.children())
    (case,) = server.children()
    case.kill()
    output, errors = run.communicate(timeout=30)
    assert run.returncode == 1, errors
    assert "killed by signal 9" in errors
    records = [json.loads(line) for line in (tmp_path / "out" / "measurements.jsonl").open()]
    assert [record["status"] for record in records] == ["ok", "killed"]
    assert "killed" in output
