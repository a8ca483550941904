"""Snapshots of torch's own allocator, replayed: two streams, pages, an empty cache, memory that runs out, midway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nooom.profiler.snapshots.recording import load
from nooom.profiler.snapshots.replay import Replay

PROGRAM = Path(__file__).with_name("replay_program.py")


@pytest.mark.parametrize(
    ("conf", "entries"),
    [("", 100_000), ("", 1500), ("expandable_segments:True", 100_000), ("expandable_segments:True", 1500)],
)
def test_the_replay_is_what_torch_did(
    cuda_python: str, phantom_nooom_in: Callable[..., Any], tmp_path: Path, conf: str, entries: int
) -> None:
    path = tmp_path / "s.pickle"
    done = phantom_nooom_in(
        tmp_path, "measure", "--gpu", "a100-80gb", "--json", "--", cuda_python, PROGRAM, path, entries,
        env={"PYTORCH_ALLOC_CONF": conf},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("peaks ")]
    allocated, reserved = map(int, line.split()[1:])
    found = Replay(load(path))
    same, _ = found.as_recorded()
    assert found.beginning.is_empty == (entries > 1500)
    assert (same.different, same.peak_reserved_bytes) == (0, reserved)
    assert same.peak_allocated_bytes == allocated
    assert same.failed is not None
    assert (same.failed.as_recorded, same.failed.tried_bytes, found.recorded.ooms) == (True, 79 << 30, 1)
