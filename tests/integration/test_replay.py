"""``nooom replay`` as a user runs it: tables, the JSON answer, and hostile files that cost neither memory nor time."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import recordings
from tests.support.programs import written

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    written(folder / "whole.pickle")
    written(folder / "midway.pickle", cut=300)
    written(folder / "other.pickle", seed=1)
    return folder


def test_the_answer_in_json(nooom: Any, snapshots: Path) -> None:
    done = nooom("replay", snapshots / "whole.pickle", "--against", snapshots / "other.pickle", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert next(iter(found)) == "schema_version"
    assert (found["schema_version"], found["complete"], found["gpu"], found["device_index"]) == (1, True, None, 0)
    same, *others = found["replays"]
    assert same["peak_reserved_bytes"] == found["recorded"]["peak_reserved_bytes"]
    assert same["final_reserved_bytes"] == found["recorded"]["final_reserved_bytes"]
    assert same["different"] == {"allocations": 0, "first_event": None, "largest_bytes": 0}
    assert [one["settings"] for one in others] == [
        "expandable_segments:True",
        "roundup_power2_divisions:8",
        "max_split_size_mb:256",
    ]
    growth = found["growth"]
    assert growth["by"] == "site"
    peaks = growth["peak_requested_bytes"]
    assert sum(row["change_bytes"] for row in growth["rows"]) == peaks["now"] - peaks["before"]
    assert growth["rows"][0]["what"] == "train.py:7 step"


def test_the_table(nooom: Any, snapshots: Path) -> None:
    done = nooom(
        "replay", snapshots / "midway.pickle", "--alloc-conf", "expandable_segments:True", "--gpu", "t4-16gb",
        "--gpu-memory", "500MiB", "--against", snapshots / "other.pickle",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("recorded", "simulated", "packed", "expandable_segments:True", "OOM", "out of memory before the first event",
                 "begins midway", "train.py:7 step", "t4-16gb"):  # fmt: skip
        assert word in done.stdout, word
    assert max(map(len, done.stdout.splitlines()[2:10])) <= 80


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--alloc-conf", "expandable_segmnts:True"], "did you mean expandable_segments"),
        (["--gpu", "h100-80g"], "h100-80gb"),
        (["--gpu-memory", "9GiB"], "add --gpu NAME"),
        (["--device-index", "4"], "no events of device 4"),
        (["--against", "nowhere.pickle"], "nowhere.pickle: can't be read"),
        (["--alloc-con", "x"], "--alloc-conf"),
    ],
)
def test_wrong_usage(nooom: Any, snapshots: Path, arguments: list[str], says: str) -> None:
    done = nooom("replay", snapshots / "whole.pickle", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


class Harmful:
    def __reduce__(self) -> Any:
        return (os.system, ("touch ran",))


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 30)


def _bomb(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"\x80\x04")
        for _ in range(600):
            file.write(b"N" * (1 << 20))


HOSTILE: dict[str, tuple[Any, str]] = {
    "a pickle that runs a command": (pickle.dumps(Harmful()), "not plain data"),
    "one that names a class": (pickle.dumps({"segments": Path("x")}), "not plain data"),
    "a memo bomb": (b"\x80\x04Nr\xff\xff\xff\x7f.", "memo has holes"),
    "a string of 2**60 bytes": (b"\x80\x04\x8d" + (2**60).to_bytes(8, "little"), "damaged or cut off"),
    "cut off": (pickle.dumps({"device_traces": [[1] * 1000]})[:-20], "damaged or cut off"),
    "lists in lists": (b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".", "only the memory's map"),
    "JSON in JSON": (b'{"a":' * 200_000, "nested too deeply"),
    "NaN": (b'{"device_traces": [[{"action": "alloc", "size": NaN}]]}', "NaN"),
    "wrong types": (b'{"device_traces": [[{"action": "alloc", "addr": "x"}]], "segments": []}', "its addr is a str"),
    "a gigabyte of nothing": (_sparse, "1024 MiB, and 512 MiB are read at most"),
    "a bomb in gzip": (_bomb, "more than 512 MiB"),
    "a name with lines in it": (b'{"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1}]]}', ""),
}  # fmt: skip
MOST_MIB = 900
"""Of the process at its largest, torch not imported: half a gigabyte of the file, and what else there is."""

MEASURED = """
import resource, sys
from nooom.benchmarks.cli import main
try:
    main(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, says = HOSTILE[name]
    path = tmp_path / ("a\nb\x1b[31m.pickle" if "lines" in name else "s.pickle")
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "replay", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr
    largest_mib, has_torch = done.stdout.split()
    assert int(largest_mib) < MOST_MIB
    assert has_torch == "False"
    assert not (tmp_path / "ran").exists()


@recordings.needed
@pytest.mark.parametrize("name", recordings.names()[::8])
def test_a_real_recording_through_the_command(nooom: Any, name: str) -> None:
    done = nooom("replay", recordings.RECORDINGS / f"{name}.json.gz", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    same = found["replays"][0]
    assert same["different"]["allocations"] == 0
    for figure in ("peak_reserved_bytes", "final_reserved_bytes"):
        assert same[figure] == found["recorded"][figure]


def test_a_prediction_leaves_a_snapshot_that_replays_to_it(nooom: Any, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "predicted.pickle"
    done = nooom(
        "predict", "--model", tiny_model, "--workload", "lora", "--seq", "64", "--gpu", "a100-80gb", "--by", "dryrun",
        "--snapshot", path, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (prediction,) = json.loads(done.stdout)["predictions"]
    found = json.loads(nooom("replay", path, "--json").stdout)
    assert (found["complete"], found["replays"][0]["different"]["allocations"]) == (True, 0)
    assert found["replays"][0]["peak_reserved_bytes"] == prediction["reserved_bytes"]
    assert found["replays"][0]["peak_allocated_bytes"] == prediction["allocated_bytes"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["predicted.pickle", "tiny", "work"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--snapshot", "s"], "add --by dryrun and --gpu NAME"),
        (["--gpu", "t4-16gb", "--snapshot", "s"], "add --by dryrun and --gpu NAME"),
        (["--gpu", "t4-16gb", "--by", "dryrun", "--snapshot", "."], "is a folder"),
        (["--gpu", "t4-16gb", "--by", "dryrun", "--snapshot", "no/s"], "lies in none that exists"),
    ],
)
def test_a_snapshot_that_can_not_be(nooom: Any, tiny_model: Path, arguments: list[str], says: str) -> None:
    done = nooom("predict", "--model", tiny_model, "--workload", "lora", "--seq", "64", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
