"""Baselines: where they stand, what a line holds, what is refused, and what git remembers of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import baselines, gate
from nooom.benchmarks.cli import _run
from nooom.benchmarks.history import history
from nooom.benchmarks.journal import FILE_NAME
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement, Phase, own_code

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30
GPU = {"name": "NVIDIA A100-SXM4-80GB", "total_bytes": 85_100_068_864}


def record(seq: int = 128, size: int = GIB, **change: Any) -> Measurement:
    case = Case(model="HuggingFaceTB/SmolLM2-135M", workload="sft", seq=seq)
    facts: dict[str, Any] = dict(case_id=case.case_id(), case=case.to_dict(), source="emulated", device="phantom")
    facts |= dict(status="ok", gpu=GPU, fingerprint={"torch": "2.13.0+cu130", "dirty": False, "wall_s": 3.2})
    facts |= dict(first={"phases": []}, sampling={"interval_s": 0.01})
    facts |= dict(phases=[Phase(name="backward", peak_allocated_bytes=size, seconds=1.5, rss_peak_bytes=7)])
    return Measurement(**(facts | change))


def results(folder: Path, *records: Measurement) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text("".join(json.dumps(one.to_json()) + "\n" for one in records))
    return folder


def update(folder: Path, *records: Measurement, options: tuple[str, ...] = ()) -> int:
    given = results(folder / "results", *records)
    return _run(["baseline", "update", str(given), "--suite", "smoke", "--to", str(folder / "baselines"), *options])


FILE = Path("baselines/smoke/a100-80gb-emulated/torch-2.13.jsonl")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({}, "s/a100-80gb-emulated/torch-2.13.jsonl"),
        (dict(source="measured", device="cuda"), "s/a100-80gb/torch-2.13.jsonl"),
        (dict(source="measured", device="cpu", gpu=None), "s/cpu/torch-2.13.jsonl"),
        (dict(fingerprint={}), "s/a100-80gb-emulated/torch-unknown.jsonl"),
        (dict(gpu={"name": "../../etc", "total_bytes": 1}), "s/etc-emulated/torch-2.13.jsonl"),
        (dict(gpu={"name": "...", "total_bytes": 1}), "s/unknown-gpu-emulated/torch-2.13.jsonl"),
        (dict(fingerprint={"torch": "../../x"}), "s/a100-80gb-emulated/torch-unknown.jsonl"),
    ],
)
def test_one_file_for_a_suite_a_gpu_and_a_minor_version(change: dict[str, Any], place: str) -> None:
    assert baselines.path_of("s", record(**change)) == Path(place)


@pytest.mark.parametrize("suite", ["", ".", "..", "../x", "a/b", "a b", "-x", "a\n"])
def test_a_suites_name_is_a_plain_one(suite: str) -> None:
    with pytest.raises(UsageError, match="letters, digits"):
        baselines.path_of(suite, record())


def test_a_line_holds_what_repeats_and_no_more(tmp_path: Path) -> None:
    assert update(tmp_path, record(256), record(128)) == 0
    text = (tmp_path / FILE).read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert text == "".join(sorted(text.splitlines(keepends=True)))
    assert [list(line) for line in lines] == [sorted(line) for line in lines]
    for line in lines:
        assert line["phases"][0]["peak_allocated_bytes"] == GIB
        assert line["phases"][0]["seconds"] is line["phases"][0]["rss_peak_bytes"] is line["first"] is None
        assert line["sampling"] is None
        assert line["fingerprint"] == {"torch": "2.13.0+cu130", "dirty": False}


def test_measured_again_the_same_file_comes_out(tmp_path: Path) -> None:
    update(tmp_path, record(128), record(256))
    before = (tmp_path / FILE).read_bytes()
    again = dataclasses.replace(record(256), fingerprint={"wall_s": 99.0, "torch": "2.13.0+cu130", "dirty": False})
    assert update(tmp_path, again) == 0
    assert (tmp_path / FILE).read_bytes() == before
    assert [file.name for file in (tmp_path / FILE).parent.iterdir()] == [FILE.name]


def test_other_cases_stay_unless_pruned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update(tmp_path, record(1), record(2))
    capsys.readouterr()
    assert update(tmp_path, record(2, 5 * GIB), record(3)) == 0
    assert "3 cases: 1 new, 1 changed, 0 dropped" in capsys.readouterr().out
    assert update(tmp_path, record(3), options=("--prune",)) == 0
    assert "1 cases: 0 new, 0 changed, 2 dropped" in capsys.readouterr().out


def test_a_band_is_stored_kept_and_used(tmp_path: Path) -> None:
    update(tmp_path, record(1), options=("--band", "64 MiB"))
    update(tmp_path, record(1, 2 * GIB))  # an update of the figure is none of the band
    (entry,) = gate.read_set(tmp_path / "baselines")
    assert entry.measurement.band_bytes == 64 << 20
    grown = [record(1, 2 * GIB + (64 << 20)), record(1, 2 * GIB + (64 << 20) + 1)]
    states = [gate.compare([entry.measurement], [one]).rows[0].state for one in grown]
    assert states == ["pass", "regression"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(status="oom", error={"phase": "backward", "message": ""}), "ended as oom: no baseline"),
        (dict(status="crashed", error={"message": ""}), "ended as crashed: no baseline"),
        (dict(fingerprint={"torch": "2.13.0", "dirty": True}), "uncommitted changes"),
        (dict(phases=[]), "has no peak"),
    ],
)
def test_what_may_be_no_baseline_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], says: str
) -> None:
    assert update(tmp_path, record(1), record(2, **change)) == 2
    said = capsys.readouterr().err
    assert f"{FILE_NAME}:2: SmolLM2-135M sft 1x2" in said
    assert says in said
    assert not (tmp_path / "baselines").exists()


def test_the_same_case_in_two_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = results(tmp_path / "a", record(1)), results(tmp_path / "b", record(1, 5))
    assert _run(["baseline", "update", str(a), str(b), "--suite", "s", "--to", str(tmp_path / "to")]) == 2
    assert "is measured a second time" in capsys.readouterr().err


def test_a_torn_baseline_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update(tmp_path, record(1))
    torn = (tmp_path / FILE).read_text()[:-20]
    (tmp_path / FILE).write_text(torn)
    assert update(tmp_path, record(2)) == 2
    assert "torn" in capsys.readouterr().err
    assert (tmp_path / FILE).read_text() == torn


def test_what_is_proposed_can_be_committed_as_it_is(tmp_path: Path) -> None:
    update(tmp_path, record(1), record(2), record(3))
    known = gate.read_set(tmp_path / "baselines")
    oom = record(2, status="oom", error={"phase": "backward", "message": ""})
    current = [record(1, 2 * GIB), oom, record(4)]
    (proposed,) = baselines.proposed(known, current, "smoke")
    assert proposed.path == Path(*FILE.parts[1:])
    figures = {one.label: one.peak_allocated_bytes for one in proposed.records}
    names = [f"SmolLM2-135M sft 1x{seq}" for seq in (1, 2, 3, 4)]
    # The one that grew is new, the one that failed and the one that was not measured are as they were.
    assert figures == dict(zip(names, (2 * GIB, GIB, GIB, GIB), strict=True))
    assert (proposed.added, proposed.changed) == (1, 1)


def test_code_of_ones_own_has_baselines_too(tmp_path: Path) -> None:
    assert update(tmp_path, record(**own_code("tests/test_a.py::test_b"))) == 0
    (entry,) = gate.read_set(tmp_path / "baselines")
    assert entry.measurement.label == "tests/test_a.py::test_b"


def test_two_gpus_of_one_name_in_the_table_stand_in_one_file(tmp_path: Path) -> None:
    pcie = {"name": "NVIDIA A100 80GB PCIe", "total_bytes": 85_100_068_864}
    assert baselines.path_of("s", record(gpu=pcie)) == baselines.path_of("s", record())
    update(tmp_path, record(1))
    update(tmp_path, record(1, 5 * GIB, gpu=pcie))
    assert len(gate.read_set(tmp_path / "baselines")) == 2
    assert len(baselines.proposed(gate.read_set(tmp_path / "baselines"), [record(1, 7 * GIB)], "smoke")[0].records) == 2


def test_updates_at_once_lose_nothing(tmp_path: Path) -> None:
    commands = []
    for number in range(3):
        given = results(tmp_path / str(number), *(record(100 * number + seq) for seq in range(1, 20)))
        words = ["baseline", "update", str(given), "--suite", "smoke", "--to", str(tmp_path / "baselines")]
        commands.append(subprocess.Popen([sys.executable, "-m", "nooom", *words], cwd=ROOT, stdout=subprocess.DEVNULL))
    assert [process.wait(timeout=120) for process in commands] == [0, 0, 0]
    assert len(gate.read_set(tmp_path / "baselines")) == 57


# --- what git remembers ---


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, env=environment)


def commit(folder: Path, subject: str, *records: Measurement, options: tuple[str, ...] = ()) -> None:
    assert update(folder, *records, options=options) == 0
    git(folder, "add", "baselines")
    git(folder, "commit", "-q", "-m", subject)


def test_history_has_each_commit_that_changed_the_case(checkout: Path) -> None:
    commit(checkout, "first", record(1), record(2))
    commit(checkout, "another case", record(2, 2 * GIB))
    commit(checkout, "costs a copy\tof\u2028the\x0clogits", record(1, 3 * GIB))
    commit(checkout, "taken out", record(2, 2 * GIB), options=("--prune",))
    found = history(checkout / FILE, record(1).case_id)
    assert [one.subject for one in found] == ["first", "costs a copy\tof\u2028the\x0clogits", "taken out"]
    peaks = [None if one.record is None else one.record.peak_allocated_bytes for one in found]
    assert peaks == [GIB, 3 * GIB, None]


def test_the_log_as_a_table_and_as_json(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(checkout, "first", record(1), record(2))
    commit(checkout, "grew \x1b[2J", record(1, 3 * GIB))
    capsys.readouterr()
    assert _run(["baseline", "log", "sft 1x1", "--in", str(checkout / "baselines")]) == 0
    shown = capsys.readouterr().out
    assert "+2048.0 MiB" in shown
    assert "…" not in shown
    assert "#####" in shown
    assert "\x1b" not in shown
    assert _run(["baseline", "log", record(1).case_id, "--in", str(checkout / FILE), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["peak_allocated_bytes"] for one in document["versions"]] == [{"backward": GIB}, {"backward": 3 * GIB}]


@pytest.mark.parametrize(
    ("case", "says"),
    [("nothing", "no case 'nothing' among 2"), ("sft", "may be any of 2 cases"), ("", "which case?")],
)
def test_which_case_is_meant_must_be_plain(
    checkout: Path, capsys: pytest.CaptureFixture[str], case: str, says: str
) -> None:
    commit(checkout, "first", record(1), record(2))
    assert _run(["baseline", "log", case, "--in", str(checkout / "baselines")]) == 2
    assert says in capsys.readouterr().err


def test_no_history_without_a_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update(tmp_path, record(1))
    assert _run(["baseline", "log", record(1).case_id, "--in", str(tmp_path / "baselines")]) == 2
    assert "git" in capsys.readouterr().err
