"""Autocast emulated on meta tensors against CUDA's own: the same operations, casts and deaths, in the same order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Measure = Callable[..., Any]
PROGRAMS = Path(__file__).with_name("autocast_programs.py").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _needs_transformers() -> None:
    for module in ("torch", "transformers", "peft", "accelerate"):
        pytest.importorskip(module)


def test_meta_tensors_see_the_casts_that_cuda_does(
    measure: Measure, work: Path, environment: Mapping[str, str]
) -> None:
    done = measure(PROGRAMS, "cuda", "cuda.json")
    assert done.code == 0, done.said
    subprocess.run(
        [sys.executable, "program.py", "meta", "meta.json"], cwd=work, env=environment, check=True, timeout=300
    )
    cuda, meta = (json.loads((work / f"{device}.json").read_text()) for device in ("cuda", "meta"))
    assert list(cuda) == list(meta)
    assert len(cuda) >= 15
    for name in cuda:
        assert _ordered(meta[name]) == _ordered(cuda[name]), name


def _ordered(rows: list[Any]) -> list[Any]:
    """Deaths between two operations sorted: CUDA's autocast frees its cache in the order of a hash table."""
    found: list[Any] = []
    deaths: list[str] = []
    for row in [*rows, None]:
        if isinstance(row, str) and row.endswith(" dies"):
            deaths.append(row)
        else:
            found += [*sorted(deaths), row]
            deaths = []
    return found
