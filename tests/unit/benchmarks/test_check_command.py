"""``nooom check`` on sets that are there: usage, exit codes, files, and that no run of it hides anything."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]

from nooom.benchmarks import gate, repeats, sides
from nooom.benchmarks.cli import _run, app
from nooom.benchmarks.journal import FILE_NAME
from nooom.formulas.case import Case
from nooom.formulas.errors import NooomError
from nooom.profiler.measurement import Measurement, Phase, own_code

ROOT = Path(__file__).resolve().parents[3]
GIB, MIB = 1 << 30, 1 << 20
A100 = {"name": "NVIDIA A100-SXM4-80GB", "total_bytes": 85_100_068_864}


def record(seq: int = 128, size: int = GIB, **change: Any) -> Measurement:
    case = Case(model="HuggingFaceTB/SmolLM2-135M", workload="sft", seq=seq)
    facts: dict[str, Any] = dict(case_id=case.case_id(), case=case.to_dict(), source="measured", device="cuda")
    facts |= dict(status="ok", gpu=A100, fingerprint={"torch": "2.13.0"})
    facts |= dict(
        phases=[Phase(name="load", peak_allocated_bytes=GIB), Phase(name="backward", peak_allocated_bytes=size)]
    )
    return Measurement(**(facts | change))


def results(folder: Path, *records: Measurement) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text("".join(json.dumps(one.to_json()) + "\n" for one in records))
    return folder


def check(tmp_path: Path, before: Sequence[Measurement], after: Sequence[Measurement], *options: str) -> int:
    sets = [results(tmp_path / "before", *before), results(tmp_path / "after", *after)]
    return _run(
        ["check", "--baseline", str(sets[0]), "--current", str(sets[1]), "--out", str(tmp_path / "out"), *options]
    )


CPU: dict[str, Any] = dict(source="measured", device="cpu", gpu=None)
GROWN = record(size=2 * GIB)


@pytest.mark.parametrize(
    ("before", "after", "options", "code"),
    [
        ([record()], [record()], [], 0),
        ([record()], [GROWN], [], 1),
        ([record()], [record(size=GIB // 2)], [], 0),
        ([record()], [record(gpu={"name": "NVIDIA H200"})], [], 3),
        ([record()], [record(gpu={"name": "NVIDIA H200"})], ["--strict"], 1),
        ([record()], [record()], ["--require-gpu"], 0),
        ([record(**CPU)], [record(**CPU)], [], 0),
        ([record(**CPU)], [record(**CPU)], ["--require-gpu"], 3),
        # The GPU's cases were skipped and nobody said so: this is what the option is for.
        ([record(**CPU), record()], [record(**CPU)], [], 0),
        ([record(**CPU), record()], [record(**CPU)], ["--require-gpu"], 3),
        ([record(), record(gpu={"name": "NVIDIA H200"})], [record()], ["--require-gpu"], 1),
    ],
)
def test_exit_codes(
    tmp_path: Path, before: list[Measurement], after: list[Measurement], options: list[str], code: int
) -> None:
    assert check(tmp_path, before, after, *options) == code


def test_a_few_kib_more_on_every_figure_are_no_growth(tmp_path: Path) -> None:
    def more(one: Measurement) -> Measurement:
        phases = [dataclasses.replace(p, peak_allocated_bytes=(p.peak_allocated_bytes or 0) + 4096) for p in one.phases]
        return dataclasses.replace(one, phases=phases)

    known = [record(seq) for seq in range(1, 20)] + [record(seq, **CPU) for seq in range(1, 20)]
    assert check(tmp_path, known, [more(one) for one in known]) == 0


def test_every_file_is_written_and_json_is_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, [record()], [GROWN], "--json") == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    names = {"report.json", "report.csv", "summary.md", "junit.xml", "benchmark.json", "baseline"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == document
    assert document["counts"]["regression"] == 1
    keys = {
        "case_id",
        "phase",
        "state",
        "baseline_bytes",
        "current_bytes",
        "change_bytes",
        "change_ratio",
        "band_bytes",
    }
    assert keys | {"grew", "suspects"} <= set(document["rows"][0])


def test_nothing_compared_still_leaves_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, [record()], [record(gpu={"name": "NVIDIA H200"})]) == 3
    assert "nothing was compared: 1 not_comparable" in capsys.readouterr().err
    assert (tmp_path / "out" / "report.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "compare with what?"),
        (["--env", "a.txt"], "compare with what?"),
        (["--baseline", "x"], "compare what?"),
        (["--baseline", "x", "--current", "y", "--device", "cpu"], "give one of them"),
        (["--baseline", "x", "--current", "y", "--env", "a.txt"], "give one of them"),
        (["smoke", "--baseline", "x", "--current", "y"], "with --current nothing is run"),
        (["--baseline", "x", "--current", "y", "--batch", "2"], "with --current nothing is run"),
        (["--baseline", "x", "--device", "phantom", "--gpu-memory", "2GiB"], "add --gpu NAME"),
        (["--env", "a.txt", "--env", "b.txt"], "give a suite"),
        (["--baseline", "nowhere", "--current", "y"], "nowhere: no such file or folder"),
        (["--baseline", "x", "--device", "dryrun"], "add --gpu NAME"),
        (["--baseline", "x", "--device", "phantom"], "add --gpu NAME"),
        (["--baseline", "x", "--curent", "y"], "--current"),
        (["smoke", "--device", "cpu", "--env", "no.txt", "--env", "no2.txt"], "no.txt: No such file"),
        (["smoke", "--device", "cpu", "--env", ".", "--env", "."], "--env takes a pip requirements file"),
    ],
)
def test_wrong_usage_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(["check", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_an_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("mine")
    assert check(tmp_path, [record()], [record()]) == 2
    assert "can't write" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


def own_places(folder: Path) -> dict[str, tuple[list[str], str]]:
    return {
        "out is the baseline's parent": (
            ["--baseline", "gpu/baseline", "--current", "now", "--out", "gpu"],
            "--baseline",
        ),
        "out is here": (["--baseline", "baseline", "--current", "now", "--out", "."], "--baseline"),
        "out below the baseline": (
            ["--baseline", "baseline", "--current", "now", "--out", "baseline/check"],
            "--baseline",
        ),
        "out is current": (["--baseline", "baseline", "--current", "now", "--out", "now"], "--current"),
        "current of an earlier check": (
            ["--baseline", "baseline", "--current", "c/current", "--out", "c"],
            "--current",
        ),
    }


@pytest.mark.parametrize("which", list(own_places(Path())))
def test_a_check_never_writes_into_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpu/baseline", "baseline"):
        results(tmp_path / name, record())
    for name in ("now", "c/current"):
        results(tmp_path / name, GROWN)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")}
    arguments, says = own_places(tmp_path)[which]
    assert _run(["check", *arguments]) == 2
    assert f"would write into {says}" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("current", ["baseline", "baseline/new"])
def test_a_set_is_not_compared_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], current: str
) -> None:
    monkeypatch.chdir(tmp_path)
    results(tmp_path / "baseline" / "new", record())
    assert _run(["check", "--baseline", "baseline", "--current", current]) == 2
    assert "compared with itself" in capsys.readouterr().err


def test_a_folder_with_both_kinds_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "b" / "smoke" / "a100-80gb" / "torch-2.13.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(record().to_json()) + "\n")
    results(tmp_path / "b" / "left-behind", GROWN)
    now = results(tmp_path / "now", GROWN)
    assert _run(["check", "--baseline", str(tmp_path / "b"), "--current", str(now), "--out", str(tmp_path / "o")]) == 2
    assert "name one of the two" in capsys.readouterr().err


def test_whoever_reads_only_the_first_line_does_not_hide_a_regression(tmp_path: Path) -> None:
    sets = [f"--baseline={results(tmp_path / 'a', record())}", f"--current={results(tmp_path / 'b', GROWN)}"]
    command = [sys.executable, "-m", "nooom", "check", *sets, f"--out={tmp_path / 'o'}"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(command, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, check=False, timeout=120)
    assert done.returncode == 1, done.stderr


def test_nothing_of_the_baseline_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "run_here", lambda asked, known: ([], side([record()])))
    base = results(tmp_path / "a", record(5))
    assert _run(["check", "--baseline", str(base), "--device", "cpu", "--out", str(tmp_path / "o")]) == 3


def side(records: list[Measurement]) -> sides.Side:
    return sides.Side(name="run", records=records, again=lambda doubted, times: ({}, {}), was_run=True)


def test_a_verdict_is_said_even_where_no_proposal_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "baseline").write_text("a file")
    assert check(tmp_path, [record()], [GROWN], "--json") == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["counts"]["regression"] == 1
    assert "no new baseline is proposed" in said.err


def test_what_is_not_a_checks_own_stays_in_its_folder(tmp_path: Path) -> None:
    precious = tmp_path / "current" / "precious"
    precious.mkdir(parents=True)
    results(tmp_path / "current", record())
    sides._empty(tmp_path / "current")
    assert list((tmp_path / "current").iterdir()) == [precious]


@pytest.mark.parametrize("option", ["--baseline", "--current"])
def test_a_path_that_cannot_be_looked_at_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    sets = {"--baseline": str(results(tmp_path / "a", record())), "--current": str(results(tmp_path / "b", record()))}
    sets[option] = "x" * 300
    words = [word for pair in sets.items() for word in pair]
    assert _run(["check", *words, "--out", str(tmp_path / "o")]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_nothing_from_outside_begins_a_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["check", "--baseline", "no\n::error::x\x1b[31m", "--current", "y", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said


# --- another look ---


def test_a_case_on_two_gpus_is_looked_at_on_the_one_where_it_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h200 = {"name": "NVIDIA H200", "total_bytes": 150_000_000_000}
    seen: list[Measurement] = []

    def again(records: Any, times: int, options: Any) -> Any:
        seen.extend(records)
        return {gate.key(one): [one, one] for one in records}, {}

    monkeypatch.setattr(repeats, "again", again)
    assert check(tmp_path, [record(), record(gpu=h200)], [GROWN, record(gpu=h200)], "--confirm") == 1
    assert [one.gpu for one in seen] == [A100]


def test_what_cannot_be_run_again_keeps_its_figure_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = own_code("tests/test_a.py::test_b")
    before, after = [record(**mine), record()], [record(size=2 * GIB, **mine), GROWN]
    assert check(tmp_path, before, after, "--confirm", "--json") == 1
    notes = {
        row["case"]: row["note"] for row in json.loads(capsys.readouterr().out)["rows"] if row["state"] == "regression"
    }
    assert notes["tests/test_a.py::test_b"] == "could not be run again: it is code of one's own, which nooom can't run"
    assert "no GPU to measure on" in notes["SmolLM2-135M sft 1x128"]


def test_the_median_of_three_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def again(records: Any, times: int, options: Any) -> Any:
        asked.append(times)
        return {gate.key(one): sizes.pop(one.case_id) for one in records}, {}

    monkeypatch.setattr(repeats, "again", again)
    ids = {seq: record(seq).case_id for seq in (1, 2, 3)}
    runs = {1: (GIB, GIB), 2: (2 * GIB, GIB), 3: (2 * GIB, 3 * GIB)}
    sizes = {ids[seq]: [record(seq, size) for size in of] for seq, of in runs.items()}
    before, after = [record(seq) for seq in ids], [record(seq, 2 * GIB) for seq in ids]
    assert check(tmp_path, before, after, "--confirm") == 1
    rows = json.loads((tmp_path / "out" / "report.json").read_text())["rows"]
    state = {row["case_id"]: row["state"] for row in rows if row["phase"] == "backward"}
    assert [state[ids[seq]] for seq in (1, 2, 3)] == ["pass", "regression", "regression"]
    assert asked == [2]


def test_of_runs_that_ended_differently_most_count() -> None:
    crashed = record(status="crashed", phases=[], error={"message": ""})
    assert repeats.median([crashed, record(), record(size=5)]).status == "ok"
    assert repeats.median([record(), crashed, crashed]).status == "crashed"


def test_a_median_is_taken_apart_where_any_run_of_its_size_was() -> None:
    apart = Phase(name="backward", peak_allocated_bytes=GIB, components={"logits": GIB}, tensors=[], hidden=[])
    found = repeats.median([record(), record(phases=[apart]), record(size=9 * GIB)])
    assert {phase.name: phase.components for phase in found.phases} == {"load": None, "backward": {"logits": GIB}}
    far = dataclasses.replace(apart, peak_allocated_bytes=9 * GIB, components={"logits": 9 * GIB})
    assert repeats.explained(record(), [record(phases=[far])]).phases[1].components is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (own_code("mine"), "code of one's own"),
        (dict(source="emulated", device="phantom", gpu={"name": "A Card Nobody Knows"}), "no GPU in the table"),
        (dict(device="cuda"), "no GPU to measure on"),
    ],
)
def test_where_a_case_cannot_be_run_again(change: dict[str, Any], says: str) -> None:
    with pytest.raises(NooomError, match=says):
        repeats.device_of(record(**change))


# --- the workflows ---


def commands(file: Path) -> list[list[str]]:
    """Every call of nooom in a workflow's steps."""
    steps = [step for job in yaml.safe_load(file.read_text())["jobs"].values() for step in job["steps"]]
    lines = [line.partition(" || ")[0] for step in steps for line in step.get("run", "").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("nooom ")]


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "ci").glob("*.yml")), ids=lambda file: file.name)
def test_workflows_use_options_that_exist(file: Path) -> None:
    found = commands(file)
    assert {words[0] for words in found} == {"check", "baseline"} | ({"run"} if file.stem == "gpu-memory" else set())
    for words in found:
        group: Any = typer.main.get_command(app)
        command = group.commands[words[0]]
        command, words = (
            (command.commands[words[1]], words[2:]) if hasattr(command, "commands") else (command, words[1:])
        )
        command.make_context(command.name, list(words))  # raises for an option that isn't there


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "ci").glob("*.yml")), ids=lambda file: file.name)
def test_workflows_approve_what_somebody_has_just_looked_at(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text())
    assert "github.event.action == 'labeled'" in workflow["jobs"]["approve"]["if"]
    assert "COMMIT" in workflow["env"]["NOOOM"]
    assert "install nooom" not in file.read_text()


def test_a_proposal_of_an_earlier_check_does_not_stay(tmp_path: Path) -> None:
    stale = tmp_path / "out" / "baseline" / "other" / "cpu" / "torch-2.13.jsonl"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    assert check(tmp_path, [record()], [record()]) == 0
    assert not stale.exists()


def test_the_page_has_the_states_and_the_bands() -> None:
    from nooom.benchmarks.gate import STATES

    page = (ROOT / "docs" / "gate.md").read_text()
    assert all(f"`{state}`" in page for state in STATES)
    for line in re.findall(r"^nooom .+$", page, re.M):
        assert line.split()[1] in ("run", "baseline", "check")
