"""GPU tests are skipped with a reason where there is no GPU, and fail there when a GPU is required."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def gpu_tests(**environment: str) -> subprocess.CompletedProcess[str]:
    """The GPU tests in a process of their own, with every GPU hidden."""
    known = {name: value for name, value in os.environ.items() if name != "NOOOM_REQUIRE_GPU"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/gpu"],
        cwd=ROOT,
        env={**known, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("value", [None, "", "0"])
def test_without_a_gpu_they_are_skipped_and_say_why(value: str | None) -> None:
    done = gpu_tests() if value is None else gpu_tests(NOOOM_REQUIRE_GPU=value)
    assert done.returncode == 0, done.stdout
    assert "skipped" in done.stdout
    assert "no GPU: CUDA_VISIBLE_DEVICES hides every GPU" in done.stdout


def test_where_a_gpu_is_required_the_skip_is_a_failure() -> None:
    done = gpu_tests(NOOOM_REQUIRE_GPU="1")
    assert done.returncode == 1, done.stdout
    assert "NOOOM_REQUIRE_GPU=1, but no GPU" in done.stdout
    assert "skipped" not in done.stdout
