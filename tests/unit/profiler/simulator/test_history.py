"""A dry run's snapshot: its own figures, and every block by its operation, its tensor and its category."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nooom.profiler.simulator.instrument import DryRunInstrument
from nooom.profiler.snapshots.recording import load
from nooom.profiler.snapshots.replay import Replay
from tests.support.programs import document


def _train(snapshot: Path | None, allocator: str = "") -> Any:
    import torch

    instrument = DryRunInstrument(
        "a100-80gb", allocator=allocator, snapshot=None if snapshot is None else str(snapshot)
    )
    instrument.open()
    try:
        instrument.phase_begins("train")
        model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
        model = model.to("meta")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            model(torch.randn(512, 1024, device="meta")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return instrument.read()
    finally:
        instrument.close()


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_it_replays_to_the_runs_own_figures(tmp_path: Path, allocator: str) -> None:
    reading = _train(tmp_path / "s.pickle", allocator)
    found = Replay(load(tmp_path / "s.pickle"))
    same, _ = found.as_recorded()
    assert found.beginning.is_empty
    assert (same.different, same.peak_reserved_bytes) == (0, reading.peak_reserved_bytes)
    assert same.peak_allocated_bytes == reading.peak_allocated_bytes
    assert found.recording.conf == allocator


def test_it_changes_nothing(tmp_path: Path) -> None:
    assert _train(tmp_path / "s.pickle") == _train(None)


def test_every_block_says_what_it_is(tmp_path: Path) -> None:
    _train(tmp_path / "s.pickle")
    allocs = [event for event in document(tmp_path / "s.pickle")["device_traces"][0] if event["action"] == "alloc"]
    said = {tuple((one["filename"], one["name"]) for one in event["frames"][:2]) for event in allocs}
    assert (("2", "aten.addmm.default"), ("activations", "float32[512, 1024]")) in said
    assert any(what == ("parameters", "0.weight float32[4096, 1024]") for _, what in said)
    assert any(what == ("optimizer", "exp_avg of 0.bias float32[4096]") for _, what in said)
    assert any(what == ("workspace", "scratch") for _, what in said)
    assert {event["category"] for event in allocs} >= {
        "parameters",
        "gradients",
        "optimizer",
        "activations",
        "workspace",
    }
    lines = {event["frames"][2]["filename"] for event in allocs if len(event["frames"]) > 2}
    assert any(line.endswith("test_history.py") for line in lines)
