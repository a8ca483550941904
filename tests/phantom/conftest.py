"""What the tests on a phantom GPU share: a Python whose torch is the CUDA build, and the command run with it.

The programs are real scripts, run as their authors would run them; models are made from configs with random weights.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., subprocess.CompletedProcess[str]]
Measure = Callable[..., "Measured"]


class Measured:
    """One ``nooom measure --json`` that ended."""

    def __init__(self, completed: subprocess.CompletedProcess[str]) -> None:
        self.code = completed.returncode
        self.said = completed.stderr
        assert completed.stdout.count("\n") == 1, completed.stdout + completed.stderr
        self.document: dict[str, Any] = json.loads(completed.stdout)
        self.processes: list[dict[str, Any]] = self.document["processes"]

    @property
    def process(self) -> dict[str, Any]:
        (one,) = self.processes
        return one

    def printed(self, word: str) -> list[int]:
        """The numbers behind the one line of the program that begins with this word."""
        (line,) = [line for line in self.said.splitlines() if line.startswith(f"{word} ")]
        return [int(number) for number in line.split()[1:]]


@functools.cache
def _says(python: str, expression: str) -> bool:
    """Whether an expression with importlib.util at hand is true in that Python."""
    code = f"import importlib.util, sys; sys.exit(not ({expression}))"
    return subprocess.run([python, "-c", code], capture_output=True, timeout=120, check=False).returncode == 0


IS_CUDA_BUILD = (
    f"sys.path.insert(0, {str(ROOT)!r}) or __import__('nooom.profiler.hardware').profiler.hardware.torch_build().cuda"
)
"""Read from a file: importing torch takes seconds."""


@pytest.fixture(scope="session")
def cuda_python() -> str:
    """This Python where its torch has CUDA, else .venv-cuda's; skipped where there is neither."""
    candidates = [sys.executable, str(ROOT / ".venv-cuda" / "bin" / "python")]
    found = next((path for path in candidates if Path(path).exists() and _says(path, IS_CUDA_BUILD)), None)
    if found is None:
        pytest.skip("no CUDA build of torch: make setup-cuda")
    return found


@pytest.fixture
def with_trl(cuda_python: str) -> str:
    """That Python, where it has TRL."""
    if not _says(cuda_python, "all(map(importlib.util.find_spec, ('trl', 'datasets')))"):
        pytest.skip("trl is not installed there")
    return cuda_python


@pytest.fixture
def work(tmp_path: Path, small_config: dict[str, object]) -> Path:
    """The folder in which everything runs, with the model's config in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(small_config))
    return folder


@pytest.fixture(scope="session")
def environment() -> Mapping[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}


@pytest.fixture(scope="session")
def phantom_nooom_in(cuda_python: str, environment: Mapping[str, str]) -> Run:
    """Run the command as a user would, with the CUDA build: ``phantom_nooom_in(folder, "measure", ...)``."""

    def run(folder: Path, *arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [cuda_python, "-m", "nooom", *map(str, arguments)],
            cwd=folder,
            env={**environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def phantom_nooom(phantom_nooom_in: Run, work: Path) -> Run:
    """The same from the work folder: ``phantom_nooom("measure", ...)``."""
    return functools.partial(phantom_nooom_in, work)


@pytest.fixture
def measure(phantom_nooom: Run, cuda_python: str, work: Path) -> Measure:
    """Run a program under ``nooom measure --json``, on an A100 unless told otherwise."""

    def run(
        program: str, *arguments: object, options: tuple[object, ...] = (), gpu: str = "a100-80gb", **rest: Any
    ) -> Measured:
        (work / "program.py").write_text(program)
        command = (cuda_python, "program.py", *arguments)
        return Measured(phantom_nooom("measure", "--gpu", gpu, *options, "--json", "--", *command, **rest))

    return run
