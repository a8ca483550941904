"""From a campaign's outputs to committed results: what is refused, what is written, and that a rehearsal stays one."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import cost
from nooom.benchmarks.campaign import causes, rehearsal, report, results
from nooom.benchmarks.campaign.collect import collect, merge
from nooom.benchmarks.campaign.differences import Difference, Emulation, differences, recorded
from nooom.benchmarks.journal import FILE_NAME, canonical, read
from nooom.benchmarks.suites.suite import load_suite
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement, Phase

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
GIB = 1 << 30
VERSIONS = {"torch": "2.11.0+cu130", "transformers": "5.17.0", "peft": "0.21.2", "accelerate": "1.15.0"}
GPU = {"name": "A GPU of this test", "total_bytes": 80 * GIB}
CASE = {"model": "HuggingFaceTB/SmolLM2-135M", "workload": "inference", "batch": 2, "new_tokens": 4}


def record(seq: int = 8, peak: int = GIB, **changed: Any) -> Measurement:
    case = Case.from_dict({**CASE, "seq": seq})
    phases = [Phase(name=name, peak_allocated_bytes=peak) for name in ("load", "prefill", "decode")]
    made = Measurement(
        case_id=case.case_id(), case=case.to_dict(), source="emulated", device="phantom", gpu=GPU, status="ok",
        phases=phases, fingerprint={**VERSIONS, "wall_s": 2.0},
    )  # fmt: skip
    return dataclasses.replace(made, **changed)


def on_hardware(**changed: Any) -> Measurement:
    """As such a record would look: it lies in this test's own folder alone."""
    return record(source="measured", device="cuda", **changed)


def output(folder: Path, *records: Measurement) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text("".join(json.dumps(one.to_json()) + "\n" for one in records))
    return folder


def test_only_what_was_measured_on_a_gpu_is_taken(tmp_path: Path) -> None:
    for wrong in (record(), record(source="measured", device="cpu"), record(source="dryrun", device="dryrun")):
        with pytest.raises(UsageError, match=rf"jsonl:2: {wrong.source} on {wrong.device}; only .* measured on cuda"):
            collect([output(tmp_path / "out", on_hardware(), wrong)])


def test_a_rehearsal_takes_what_phantoms_said_and_nothing_else(tmp_path: Path) -> None:
    assert collect([output(tmp_path / "a", record())], rehearsal=True).keys() == {"a-gpu-of-this-test"}
    with pytest.raises(UsageError, match="measured on cuda; only what was emulated on phantom"):
        collect([output(tmp_path / "b", on_hardware())], rehearsal=True)


def test_one_line_a_case_the_finished_one_and_of_two_the_first(tmp_path: Path) -> None:
    killed, oom = on_hardware(status="killed", phases=[]), on_hardware(seq=16, status="oom")
    first, again = on_hardware(peak=7 * GIB), on_hardware(peak=8 * GIB)
    outs = [output(tmp_path / "1", killed, oom), output(tmp_path / "2", first, again)]
    (found,) = collect(outs).values()
    assert sorted((one.status, one.peak_allocated_bytes) for one in found) == [("ok", 7 * GIB), ("oom", GIB)]


def test_two_sets_of_versions_are_not_mixed(tmp_path: Path) -> None:
    other = on_hardware(seq=16, fingerprint={**VERSIONS, "torch": "2.13.0"})
    with pytest.raises(UsageError, match=r"several sets of versions.*torch 2.11.0\+cu130.*torch 2.13.0"):
        collect([output(tmp_path, on_hardware(), other)])
    merge(tmp_path / "kept", [on_hardware()])
    with pytest.raises(UsageError, match="several sets of versions"):
        merge(tmp_path / "kept", [other])


def test_lines_are_sorted_canonical_and_grow_shard_by_shard(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    merge(tmp_path, [on_hardware(seq=seq) for seq in (8, 16)])
    merge(tmp_path, [on_hardware(seq=32)])
    lines = file.read_text().splitlines()
    assert lines == sorted(lines)
    assert sorted(one.case["seq"] for one in read(file)) == [8, 16, 32]
    before = file.read_bytes()
    merge(tmp_path, [on_hardware(seq=32), on_hardware(seq=8)])
    assert file.read_bytes() == before


def test_no_path_of_the_machine_that_measured_is_kept() -> None:
    error = {
        "kind": "crashed",
        "message": "OSError: can't open '/srv/someone/work/model.py', Qwen/Qwen2.5-7B",
        "phase": None,
    }
    kept = json.loads(canonical(on_hardware(status="crashed", error=error)))["error"]["message"]
    assert kept == "OSError: can't open 'model.py', Qwen/Qwen2.5-7B"


def row(said: int, **changed: Any) -> Difference:
    case = Case.from_dict({**CASE, "seq": 8})
    made = Difference(
        gpu="g", case=case, phase="decode", status="ok", emulated_status="ok", measured_bytes=1000,
        said_bytes={"emulated": said, "article": 1004},
    )  # fmt: skip
    return dataclasses.replace(made, **changed)


def test_differences_are_signed_and_the_nearest_versions_are_taken() -> None:
    def said(versions: str, peak: int) -> Emulation:
        return Emulation(versions=versions, status="ok", phases={"load": peak, "decode": peak})

    key = ("a-gpu-of-this-test", Case.from_dict({**CASE, "seq": 8}))
    same, other = "torch-2.11.0+cu128_transformers-5.17.0_peft-0.19.0", "torch-2.13.0_transformers-5.24.0"
    found = list(differences([on_hardware()], {key: [said(same, GIB), said(other, 2 * GIB)]}))
    assert [one.phase for one in found] == ["load", "prefill", "decode", "peak"]
    assert [one.error("emulated") for one in found] == [0, None, 0, 0]
    assert all(one.same_versions for one in found)
    (load, *_) = differences([on_hardware()], {key: [said(other, 2 * GIB)]})
    assert (load.error("emulated"), load.same_versions) == (1.0, False)
    assert load.error("article") < 0  # type: ignore[operator]
    (oom,) = differences([on_hardware(status="oom")], {})
    assert (oom.phase, oom.measured_bytes, oom.emulated_status) == ("peak", None, None)


def test_a_difference_above_half_a_percent_has_a_cause_or_says_that_it_has_none(tmp_path: Path) -> None:
    file = tmp_path / "causes.toml"
    file.write_text(
        '[[cause]]\nof = "emulated"\nworkload = ["sft", "inference"]\nphase = "decode"\nwhy = "a | workspace"\n'
    )
    known = causes.load(file)
    rows = [row(1005), row(1006), row(994, phase="prefill"), row(1006, measured_bytes=None)]
    assert [one.is_large("emulated") for one in rows] == [False, True, True, False]
    assert report.unknown(rows, known) == {"emulated": 1, "article": 0}
    shown = report.page(rows, known, "measured on cuda", rehearsal=False)
    assert "| decode | emulated | 0.000 | 0.000 | +0.60% | a | workspace |" in shown
    assert "| prefill | emulated | 0.000 | 0.000 | -0.60% | cause not yet found |" in shown
    assert "emulated: 1 with cause not yet found, article: 0 with" in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[cause]]\nwhy = "x"\n', "cause 1: needs of"),
        ('[[cause]]\nof = "phantom"\nwhy = "x"\n', "emulated or article"),
        ('[[cause]]\nof = "article"\nwhy = "x"\nworklod = "sft"\n', "unknown key 'worklod'; did you mean workload"),
        ("[[cause]\n", "causes.toml"),
    ],
)
def test_a_cause_that_is_none_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "causes.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        causes.load(tmp_path / "causes.toml")


def test_the_causes_that_ship_are_causes() -> None:
    assert causes.load()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the results are put into."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        f"are tested one by one: 1, of which 0 are broken\n{report.BEGIN}\nnothing yet\n{report.END}\nafter\n"
    )
    return tmp_path


def test_outputs_become_committed_results(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(
        checkout / "out", *(on_hardware(seq=seq) for seq in (8, 16)), on_hardware(seq=32, status="killed", phases=[])
    )
    played = output(checkout / "played", record(peak=GIB), record(seq=16, peak=2 * GIB))
    assert results.main(["out", "--emulated", str(played)]) == 0
    said = capsys.readouterr().out
    assert "a-gpu-of-this-test: 3 cases, 0 out of memory, 1 failed: SmolLM2-135M inference 2x32+4 (killed)" in said
    assert "emulated: 4 differences with cause not yet found" in said
    assert "of their estimate in the median" in said
    folder = checkout / "results" / "measured"
    assert (folder / "a-gpu-of-this-test" / FILE_NAME).read_text().count("\n") == 3
    assert list((checkout / "results" / "calibration" / "a-gpu-of-this-test").glob("*/constants.md"))
    assert "| measured on cuda |" in (folder / "differences.md").read_text()
    assert (checkout / "docs" / "claims.md").read_text().startswith("# The article's claims")
    readme = (checkout / "README.md").read_text()
    assert re.match(rf"are tested one by one: 134, of which 1\d are broken\n{report.BEGIN}\n\| GPU \| measured", readme)
    assert "| emulated | 2 | 1 | 1 | 50.00% | +100.0% |" in readme
    assert readme.endswith(f"{report.END}\nafter\n")


def test_a_rehearsal_writes_under_build_alone_and_never_says_measured_on_cuda(checkout: Path) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    output(checkout / "build" / "out", record(), record(seq=16))
    assert results.main(["--rehearsal", "build/out"]) == 0
    written = [path for path in checkout.rglob("*") if path.is_file() and path not in before]
    assert len(written) >= 6
    assert all(path.is_relative_to(checkout / "build") for path in written)
    assert {path: path.read_bytes() for path in before} == before
    for path in written:
        if path.name != "claims.md":  # of the measurements that ship
            text = path.read_text()
            assert "measured on cuda" not in text, path
            assert '"source": "measured"' not in text, path


def test_what_is_refused_writes_nothing(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(checkout / "out", record())
    before = sorted(checkout.rglob("*"))
    assert results.main(["out"]) == 2
    assert "emulated on phantom; only what was measured on cuda" in capsys.readouterr().err
    assert sorted(checkout.rglob("*")) == before


# --- the rehearsal that is committed ---


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return dict(json.loads((RESULTS / rehearsal.FACTS).read_text()))


def test_the_page_is_what_the_facts_make(facts: dict[str, Any]) -> None:
    assert (RESULTS / rehearsal.PAGE).read_text() == rehearsal.page(facts)


def test_both_sets_of_versions_and_both_gpus_were_played_through(facts: dict[str, Any]) -> None:
    made = {tuple(part.split("+")[0] for part in item["versions"].split("_")[:2]) for item in facts["shards"]}
    assert made == {("torch-2.13.0", "transformers-5.24.0"), ("torch-2.11.0", "transformers-5.17.0")}
    for versions in {item["versions"] for item in facts["shards"]}:
        for gpu in rehearsal.GPUS:
            of = [item for item in facts["shards"] if (item["versions"], item["gpu"]) == (versions, gpu)]
            assert [item["shard"] for item in of] == ["1/3", "2/3", "3/3"]
            assert "killed with -9 after" in of[0]["how"]
            assert "was spent after" in of[1]["how"]


def test_every_case_was_ok_or_ran_out_of_memory_where_the_suite_says_so(facts: dict[str, Any]) -> None:
    suite = load_suite(rehearsal.SUITE, "phantom")
    for item in facts["shards"]:
        expected = {case.label() for case, gpus in suite.oom_on.items() if item["gpu"] in gpus}
        assert item["failed"] == []
        assert set(item["oom"]) <= expected, item
        assert item["ok"] + len(item["oom"]) == item["cases"]
    for gpu in rehearsal.GPUS:
        expected = {case.label() for case, gpus in suite.oom_on.items() if gpu in gpus}
        assert expected == {label for item in facts["shards"] if item["gpu"] == gpu for label in item["oom"]}


def test_the_shards_are_the_suites_of_today(facts: dict[str, Any]) -> None:
    for gpu in rehearsal.GPUS:
        of = [item for item in facts["shards"] if item["gpu"] == gpu]
        for k, part in enumerate(rehearsal.parts(gpu), 1):
            for item in (item for item in of if item["shard"] == f"{k}/3"):
                assert (item["cases"], item["estimated_s"]) == (len(part), round(cost.total(part))), "make rehearsal"


@pytest.mark.usefixtures("facts")
def test_what_the_phantoms_said_is_kept_for_every_case() -> None:
    said = recorded(RESULTS / "emulated")
    for case in load_suite(rehearsal.SUITE, "phantom").cases:
        for gpu in rehearsal.GPUS:
            made = {one.versions.split("_")[0].split("+")[0] for one in said[gpu, case]}
            assert made >= {"torch-2.13.0", "torch-2.11.0"}, case.label()
