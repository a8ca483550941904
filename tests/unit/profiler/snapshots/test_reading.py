"""Files from anywhere: refused in one line, whatever is wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.errors import UsageError
from nooom.profiler.snapshots import reading
from nooom.profiler.snapshots.reading import read
from nooom.profiler.snapshots.recording import load
from tests.support.programs import document, written

GOOD: dict[str, Any] = {"device_traces": [[]], "segments": []}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dump", [pickle.dumps, lambda data: json.dumps(data).encode()])
def test_both_forms_are_read_compressed_or_not(tmp_path: Path, dump: Any, packed: bool) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(gzip.compress(dump(GOOD)) if packed else dump(GOOD))
    assert read(path) == GOOD


def _refused(path: Path) -> str:
    with pytest.raises(UsageError) as error:
        load(path)
    said = str(error.value)
    assert said.startswith(str(path))
    assert "\n" not in said
    assert len(said) < len(str(path)) + 400
    return said


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (gzip.compress(b""), "empty"),
        (gzip.compress(pickle.dumps(GOOD))[:-9], "can't be read"),
        (b"\x1f\x8b\x08" + b"x" * 40, "can't be read"),
        (b"\x1f\x8b", "can't be read"),
        (b'{"device_traces": [[]], "segments": [', "damaged or cut off: Expecting value at line 1"),
        (b'{"segments": NaN}', "has NaN, which is no number"),
        (b'{"segments": -Infinity}', "has -Infinity"),
        (b'{"segments": ' + b"9" * 30 + b"}", "a number of 30 digits"),
        (b'{"segments": ' + b"9" * 5_000_000 + b"}", "a number of 5,000,000 digits"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"\xff": 1}', "not UTF-8"),
        (b"[1, 2]", "only the memory's map"),
        (b"# a script", "not a pickle"),
    ],
)
def test_what_is_no_snapshot(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    assert says in _refused(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "not a file" in _refused(tmp_path)
    assert "No such file" in _refused(tmp_path / "nowhere")
    assert "can't be read" in _refused(tmp_path / ("x" * 300))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "not a file" in _refused(fifo)


def test_an_archive_says_what_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr("s.pickle", pickle.dumps(GOOD))
    assert "a zip archive" in _refused(tmp_path / "s.zip")


def test_sizes_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_PICKLE_BYTES", 4 << 20)
    monkeypatch.setattr(reading, "MOST_JSON_BYTES", 2 << 20)
    path = tmp_path / "s"
    path.write_bytes(b"\x80" * (5 << 20))
    assert "5 MiB, and 4 MiB are read at most" in _refused(path)
    path.write_bytes(gzip.compress(bytes(100 << 20)))
    assert "more than 4 MiB" in _refused(path)
    path.write_bytes(gzip.compress(b"  [" + b"1," * (2 << 20)))
    assert "more than 2 MiB" in _refused(path)


EVENT = {"action": "alloc", "addr": 512, "size": 512, "stream": 0}
SEGMENT: dict[str, Any] = {
    "device": 0,
    "address": 0,
    "total_size": 2 << 20,
    "stream": 0,
    "segment_type": "small",
    "blocks": [
        {"size": 512, "requested_size": 512, "state": "inactive"},
        {"size": (2 << 20) - 512, "state": "inactive"},
    ],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"device_traces": None}, "device_traces is missing, no list"),
        ({"device_traces": {}}, "device_traces is a dict, no list"),
        ({"device_traces": [5]}, "device_traces[0] is 5, no list"),
        ({"device_traces": []}, "it has no events; record them"),
        ({"device_traces": [[], []]}, "it has no events; record them"),
        ({"device_traces": [[7]]}, "event 0: it is 7, no dictionary"),
        ({"device_traces": [[EVENT, {}]]}, "event 1: its action is missing"),
        ({"device_traces": [[{**EVENT, "action": ["alloc"]}]]}, "event 0: its action is a list"),
        ({"device_traces": [[{**EVENT, "addr": "512"}]]}, "event 0: its addr is a str, no number of 64 bits"),
        ({"device_traces": [[{**EVENT, "addr": None}]]}, "event 0: its addr is missing"),
        ({"device_traces": [[{**EVENT, "size": -1}]]}, "event 0: its size is -1, no number"),
        ({"device_traces": [[{**EVENT, "size": 1.5}]]}, "event 0: its size is a float"),
        ({"device_traces": [[{**EVENT, "size": True}]]}, "event 0: its size is a bool"),
        ({"device_traces": [[{**EVENT, "size": 2**64}]]}, "event 0: its size is 18,446,744"),
        ({"device_traces": [[EVENT]], "segments": None}, "segments is missing, no list"),
        ({"segments": [4]}, "segment 0: it is 4"),
        ({"segments": [{}]}, "segment 0: blocks is missing"),
        ({"segments": [{**SEGMENT, "device": "0"}]}, "segment 0: its device is a str"),
        ({"segments": [{**SEGMENT, "total_size": 4096}]}, "segment 0: its blocks have 2,097,152 bytes, and it has 4,096"),
        ({"segments": [{**SEGMENT, "blocks": [[1, 2]]}]}, "is not [size, requested, state, address]"),
        ({"segments": [{**SEGMENT, "blocks": [[512, 0, "free"]]}]}, "state of one of its blocks is 'free'"),
        ({"segments": [{**SEGMENT, "blocks": [[512, 0, [[]]]]}]}, "state of one of its blocks is a list"),
        ({"segments": [{**SEGMENT, "blocks": [[512, 0, "inactive", 99]]}]}, "leave gaps"),
        ({"segments": [{**SEGMENT, "blocks": [[0, 0, "inactive", 0]]}]}, "leave gaps"),
        ({"segments": [{**SEGMENT, "segment_pool_id": 4}]}, "segment_pool_id is no pair"),
        ({"segments": [SEGMENT, SEGMENT]}, "two segments lie at 0"),
        ({"allocator_settings": []}, None),
        ({"allocator_settings": [1]}, "allocator_settings is a list"),
        ({"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": 4}}, "allocator_settings are no text"),
        ({"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "x" * 5000}}, "allocator_settings are no text"),
        ({"allocator_settings": {"roundup_power2_divisions": dict.fromkeys("abcdefghijklmnop", 1)}}, "are no sizes"),
    ],
)  # fmt: skip
def test_the_structure_is_checked(tmp_path: Path, change: dict[str, Any], says: str | None) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"device_traces": [[EVENT]], "segments": [SEGMENT], **change}))
    if says is None:
        assert len(load(path).events) == 1
    else:
        assert says in _refused(path)


def test_what_is_shared_a_million_times_is_counted_before_it_is_walked(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    trace = [EVENT] * 100_000
    path.write_bytes(pickle.dumps({"device_traces": [trace] * 100_000, "segments": []}))
    assert "10,000,000,000 events; 2,000,000 are replayed at most" in _refused(path)
    blocks = [SEGMENT["blocks"][0]] * 100_000
    segments = [{**SEGMENT, "blocks": blocks}] * 100_000
    path.write_bytes(pickle.dumps({"device_traces": [[EVENT]], "segments": segments}))
    assert "blocks" in _refused(path)


def test_the_device_with_the_most_events_is_read_or_that_which_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(
        json.dumps({"device_traces": [[], [EVENT], [EVENT] * 2, []], "segments": [{**SEGMENT, "device": 1}]})
    )
    assert (load(path).device, len(load(path).events), load(path).segments) == (2, 2, [])
    assert (load(path, 1).device, len(load(path, 1).segments)) == (1, 1)
    with pytest.raises(UsageError, match=r"no events of device 3; it has some of 1, 2"):
        load(path, 3)


def test_pytorchs_own_form_and_the_short_one_say_the_same(tmp_path: Path) -> None:
    written(tmp_path / "s.pickle", conf="roundup_power2_divisions:4")
    found = document(tmp_path / "s.pickle")
    events = [[one["action"], one["size"], one["addr"], one["stream"]] for one in found["device_traces"][0]]
    for segment in found["segments"]:
        segment["blocks"] = [[one["size"], one["requested_size"], one["state"], None] for one in segment["blocks"]]
    short = {"events": events, "segments": found["segments"], "allocator_settings": found["allocator_settings"]}
    (tmp_path / "s.json.gz").write_bytes(gzip.compress(json.dumps(short).encode()))
    one, other = load(tmp_path / "s.pickle"), load(tmp_path / "s.json.gz")
    assert [event[:4] for event in one.events] == [event[:4] for event in other.events]
    assert (one.settings, one.conf) == (other.settings, other.conf)
    assert [segment.total_size for segment in one.segments] == [segment.total_size for segment in other.segments]


def test_settings_of_another_release_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "of_tomorrow:1", "expandable_segments": True, "max_split_size": -1}
    path.write_text(json.dumps({"device_traces": [[EVENT]], "segments": [], "allocator_settings": settings}))
    found = load(path)
    assert found.settings.expandable_segments
    assert "no option 'of_tomorrow'" in found.notes[0]
