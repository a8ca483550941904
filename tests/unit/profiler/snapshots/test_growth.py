"""What grew from one recording to another, by the line of the program or by size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nooom.profiler.simulator.settings import MIB
from nooom.profiler.snapshots.growth import Peak, grown, has_frames, peak_of, site
from nooom.profiler.snapshots.recording import load
from nooom.profiler.snapshots.replay import Replay

TORCH = {"name": "linear", "filename": "/usr/lib/python3/dist-packages/torch/nn/functional.py", "line": 9}
CPP = {"name": "at::empty", "filename": "/pytorch/aten/src/ATen/Empty.cpp", "line": 3}
STEP = {"name": "step", "filename": "/home/me/train.py", "line": 7}
MAIN = {"name": "main", "filename": "/home/me/train.py", "line": 70}


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([CPP, TORCH, STEP, MAIN], "train.py:7 step"),
        ([CPP, TORCH], "functional.py:9 linear"),
        ([CPP], "Empty.cpp:3 at::empty"),
        ([{"name": "aten.mm.default", "filename": "layers.0.mlp", "line": 0}], "layers.0.mlp aten.mm.default"),
        ([{"name": "f"}], "f"),
        ([], "an unknown line"),
        ([7, None, {"name": 5}, {"filename": "x.py"}, STEP], "train.py:7 step"),
        ([{"name": "x" * 100_000, "filename": "y" * 100_000, "line": 2**80}], f"{'y' * 200} {'x' * 200}"),
        ([CPP] * 100_000 + [STEP], "Empty.cpp:3 at::empty"),
    ],
)
def test_the_innermost_line_of_the_program_names_a_block(frames: Any, says: str) -> None:
    assert site(frames) == says


def _alloc(address: int, size: int, frames: Any = ()) -> dict[str, Any]:
    return {"action": "alloc", "addr": address, "size": size, "stream": 0, "frames": list(frames)}


def _free(address: int, size: int) -> list[dict[str, Any]]:
    return [{"action": action, "addr": address, "size": size} for action in ("free_requested", "free_completed")]


def _peak(path: Path, events: Any, live: dict[int, tuple[int, Any]], *, by_site: bool = True) -> Peak:
    blocks, at = [], 0
    for address, (size, frames) in live.items():
        if address > at:
            blocks.append({"size": address - at, "state": "inactive"})
        blocks.append({"size": size, "requested_size": size, "state": "active_allocated", "frames": frames})
        at = address + size
    if at < 200 * MIB:
        blocks.append({"size": 200 * MIB - at, "state": "inactive"})
    segment = {"address": 0, "total_size": 200 * MIB, "stream": 0, "segment_type": "large", "blocks": blocks}
    path.write_text(json.dumps({"device_traces": [events], "segments": [segment]}))
    recording = load(path)
    assert has_frames(recording) == any(event.get("frames") for event in events)
    return peak_of(recording, Replay(recording).beginning, by_site=by_site)


def test_the_peak_is_what_was_asked_for_and_not_freed(tmp_path: Path) -> None:
    first = [_alloc(20 * MIB, 20 * MIB, [STEP]), _alloc(40 * MIB, 30 * MIB, [MAIN]), *_free(40 * MIB, 30 * MIB)]
    again = [_alloc(40 * MIB, 10 * MIB, [MAIN]), *_free(40 * MIB, 10 * MIB), *_free(80 * MIB, 4 * MIB)]
    peak = _peak(tmp_path / "s.json", [*first, *again], {0: (20 * MIB, [CPP, STEP]), 20 * MIB: (20 * MIB, [STEP])})
    assert (peak.requested_bytes, peak.event) == (74 * MIB, 1)
    assert peak.groups == {
        "train.py:7 step": (2, 40 * MIB),
        "train.py:70 main": (1, 30 * MIB),
        "4,194,304 bytes, of before the recording": (1, 4 * MIB),
    }


def test_a_peak_may_lie_before_the_first_event(tmp_path: Path) -> None:
    peak = _peak(tmp_path / "s.json", [*_free(0, 20 * MIB), _alloc(0, 8 * MIB)], {0: (8 * MIB, [])}, by_site=False)
    assert (peak.requested_bytes, peak.event, peak.groups) == (20 * MIB, None, {"20,971,520 bytes": (1, 20 * MIB)})


def test_what_grew_most_comes_first_and_what_is_the_same_not_at_all() -> None:
    before = Peak(requested_bytes=9, event=0, groups={"a": (1, 5), "b": (2, 4), "same": (1, 1), "more": (1, 6)})
    now = Peak(requested_bytes=9, event=0, groups={"b": (2, 9), "c": (1, 2), "same": (1, 1), "more": (2, 6)})
    found = [(one.what, one.count, one.size_bytes, one.change_bytes) for one in grown(before, now)]
    assert found == [
        ("b", (2, 2), (4, 9), 5),
        ("c", (0, 1), (0, 2), 2),
        ("more", (1, 2), (6, 6), 0),
        ("a", (1, 0), (5, 0), -5),
    ]
