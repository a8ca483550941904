"""Snapshots that are written open where PyTorch's own do: its viewers are asked, without a browser."""

from __future__ import annotations

import base64
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.errors import UsageError
from nooom.profiler.simulator.allocator import CachingAllocator
from nooom.profiler.simulator.settings import Settings
from nooom.profiler.snapshots.recording import load
from nooom.profiler.snapshots.writing import Told, frame, write_snapshot
from tests.support.programs import document, written


@pytest.fixture(scope="module")
def viewer() -> Any:
    from torch.cuda import _memory_viz

    return _memory_viz


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "roundup_power2_divisions:4"])
def test_pytorchs_viewers_show_it(viewer: Any, tmp_path: Path, conf: str) -> None:
    made = written(tmp_path / "s.pickle", conf=conf)
    found = document(tmp_path / "s.pickle")
    total = viewer.Bytes(made.reserved_bytes)
    assert f"total_reserved: {total}" in viewer.segsum(found)
    shown = viewer.trace(found)
    assert f"{len(found['device_traces'][0])} entries" in shown
    assert ("cudaMalloc" in shown) == (conf != "expandable_segments:True")
    lines: list[str] = []
    viewer.memory(found, format_flamegraph=lines.append)
    viewer.segments(found, format_flamegraph=lines.append)
    assert "stream_0;active_allocated;train.py:7:step" in lines[0]
    assert f"stream_0;seg_{made.segments()[0].address};" in lines[1]


@pytest.mark.parametrize("plot", ["trace_plot", "segment_plot"])
def test_its_pages_hold_it(viewer: Any, tmp_path: Path, plot: str) -> None:
    written(tmp_path / "s.pickle")
    found = document(tmp_path / "s.pickle")
    page = getattr(viewer, plot)(found)
    encoded = json.loads(re.findall(r"local_files = (\[.*\])", page)[0])[0]["base64"]
    assert pickle.loads(base64.b64decode(encoded)) == found


def test_it_has_the_keys_that_the_pages_script_reads(tmp_path: Path) -> None:
    """As ``torch.cuda.memory._snapshot()`` has them."""
    written(tmp_path / "s.pickle")
    found = document(tmp_path / "s.pickle")
    assert {"segments", "device_traces", "allocator_settings", "external_annotations"} == set(found)
    for segment in found["segments"]:
        assert {"device", "address", "total_size", "stream", "segment_type", "allocated_size", "active_size",
                "blocks", "segment_pool_id", "is_expandable", "frames", "requested_size"} == set(segment)  # fmt: skip
        for block in segment["blocks"]:
            assert {"address", "size", "requested_size", "state", "frames"} == set(block)
    for event in found["device_traces"][0]:
        assert {"action", "addr", "size", "stream", "frames"} <= set(event)
    assert len(found["allocator_settings"]["roundup_power2_divisions"]) == 16


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    conf = "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64"
    made = written(tmp_path / "s.pickle", conf=conf)
    found = load(tmp_path / "s.pickle")
    assert (found.conf, found.settings) == (conf, made.settings)
    assert sum(segment.total_size for segment in found.segments) == made.reserved_bytes


def test_memory_that_ran_out_is_told_as_pytorch_tells_it(viewer: Any, tmp_path: Path) -> None:
    write_snapshot(tmp_path / "s", [], [Told(action="oom", address=512, size=1024)], Settings())
    (event,) = document(tmp_path / "s")["device_traces"][0]
    assert event == {"action": "oom", "device_free": 512, "size": 1024, "stream": 0, "frames": []}
    assert "1.0KiB requested, 512.0B free" in viewer.trace(document(tmp_path / "s"))


def test_blocks_have_a_category_and_what_lives_its_stack(tmp_path: Path) -> None:
    made = CachingAllocator()
    address = made.malloc(5)
    told = [Told(action="alloc", address=address, size=5, frames=[frame("aten.mm.default", "mlp")], category="logits")]
    write_snapshot(tmp_path / "s", made.segments(), told, made.settings)
    found = document(tmp_path / "s")
    assert found["device_traces"][0][0]["category"] == "logits"
    assert found["segments"][0]["blocks"][0]["frames"] == [{"name": "aten.mm.default", "filename": "mlp", "line": 0}]


def test_where_nothing_can_be_written_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be written: No such file or directory"):
        write_snapshot(tmp_path / "no folder" / "s", [], [], Settings())
