"""The pytest plugin in somebody's repository, whose own modules have our folders' names: pytest as they would run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
TRAP = "raise ImportError('this is not the module you wanted')\n"
CONFTEST = """
import pytest

@pytest.fixture
def torch():
    import torch
    return torch

def pytest_runtest_call(item):  # theirs goes on as ever
    item.config.stash[CALLED] = item.config.stash.get(CALLED, 0) + 1

CALLED = pytest.StashKey()

def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.section("theirs")
    terminalreporter.line(f"their conftest saw {config.stash.get(CALLED, 0)} calls")
"""
LIMITS = """
import unittest

import pytest
import nooom

MIB = 1 << 20
once = []
kept = []

@pytest.mark.limit_gpu_memory("16 MiB")
def test_over(torch):
    first = torch.ones(6 * MIB)
    second = first * 2

@pytest.mark.limit_gpu_memory("24 MiB", device="cpu")
def test_exactly(torch):
    torch.ones(6 * MIB)

@pytest.mark.limit_gpu_memory(25165823)
def test_one_byte_over(torch):
    torch.ones(6 * MIB)

@pytest.mark.limit_gpu_memory("1 MiB", rerun=False)
def test_phases(torch):
    once.append("phases")
    nooom.phase("forward")
    first = torch.ones(MIB)
    nooom.phase("backward")
    second = torch.ones(MIB)
    assert once.count("phases") == 1

@pytest.mark.limit_gpu_memory("1 MiB")
def test_not_twice(torch):
    assert "twice" not in once
    once.append("twice")
    torch.ones(MIB)

@pytest.mark.limit_gpu_memory("1 MiB")
def test_own_error(torch):
    kept = torch.ones(MIB)
    raise ValueError("mine")

@pytest.mark.limit_gpu_memory("1 MiB")
def test_own_skip():
    pytest.skip("theirs")

@pytest.mark.xfail(reason="known", strict=True)
@pytest.mark.limit_gpu_memory("1 MiB")
def test_known(torch):
    torch.ones(MIB)

@pytest.mark.limit_gpu_memory("1 MiB")
def test_own_profiler(torch):
    with torch.profiler.profile():
        torch.ones(MIB)

@pytest.mark.limit_gpu_memory("6 MiB")
class TestCase(unittest.TestCase):
    def setUp(self):
        import torch
        self.data = torch.ones(MIB)
    def test_unittest(self):
        self.data + self.data
    def test_unittest_fails(self):
        self.fail("mine")

@pytest.mark.parametrize("count", [1])
@pytest.mark.gpu_memory_baseline
def test_new(torch, count):
    torch.ones(count * MIB)

def test_block(torch, gpu_memory):
    with gpu_memory("step") as measured:
        first = torch.ones(MIB)
        measured.phase("backward")
        second = first + first
    assert [phase.name for phase in measured.phases] == ["block", "backward"]
    assert measured.peak_allocated_bytes == 8 * MIB
    with gpu_memory("named", attribute=True) as measured:
        torch.ones(MIB)
    assert measured.phases[0].tensors[0]["op"] == "aten.ones.default"

def test_block_twice(gpu_memory):
    with gpu_memory("step"):
        pass
    with gpu_memory("step"):
        pass

@pytest.mark.limit_gpu_memory("6 MiB")
def test_block_inside(torch, gpu_memory):
    first = torch.ones(MIB)
    with gpu_memory("inner") as measured:
        second = torch.ones(MIB)
        measured.phase("later")
    assert measured.peak_allocated_bytes == 8 * MIB
    gpu_memory.no_leak(lambda: torch.ones(10), repeats=2)

def leaks():
    import torch
    kept.append(torch.ones(1000, 25))

def test_leak(gpu_memory):
    gpu_memory.no_leak(leaks, repeats=3)

def test_no_leak(torch, gpu_memory):
    def cycle():
        found = [torch.ones(1000)]
        found.append(found)
    gpu_memory.no_leak(cycle, repeats=2)
    gpu_memory.no_leak(leaks, repeats=2, slack_bytes=100_000)

def test_phase_of_nothing(gpu_memory):
    gpu_memory.phase("forward")
"""
WRONG = """
import pytest

@pytest.mark.limit_gpu_memory("1 MiB", metrik="reserved")
def test_key(): pass
@pytest.mark.limit_gpu_memory("twelve")
def test_size(): pass
@pytest.mark.limit_gpu_memory
def test_no_size(): pass
@pytest.mark.limit_gpu_memory("1 MiB", device="tpu")
def test_device(): pass
@pytest.mark.limit_gpu_memory("1 MiB", metric="reserved", device="cpu")
def test_reserved(): pass
@pytest.mark.gpu_memory_baseline(band="wide")
def test_band(): pass
@pytest.mark.gpu_memory_baseline("torn.jsonl")
def test_torn(): pass
@pytest.mark.gpu_memory_baseline("garbage.jsonl")
def test_garbage(): pass
@pytest.mark.gpu_memory_baseline("double.jsonl")
def test_double(): pass
"""
LIGHT = """
import sys

def test_nothing_heavy_is_there():
    assert not {"torch", "pandas", "rich", "typer", "transformers", "numpy", "psutil"} & set(sys.modules)

def test_the_fixture_costs_nothing_until_it_measures(gpu_memory):
    assert "torch" not in sys.modules
"""
COMPARED = """
import pytest
pytestmark = pytest.mark.gpu_memory_baseline

def taken(torch, count):
    kept = torch.ones(count << 20)

def test_grown(torch):
    taken(torch, 2)
def test_less(torch):
    taken(torch, 1)
def test_same(torch):
    taken(torch, 1)
def test_other_torch(torch):
    taken(torch, 1)
@pytest.mark.gpu_memory_baseline(band="8 MiB")
def test_banded(torch):
    taken(torch, 2)
def test_other_phases(torch, gpu_memory):
    gpu_memory.phase("step")
seen = []
def test_once(torch):
    assert not seen
    seen.append(1)
    taken(torch, 1)
"""


class Inner:
    """One run of pytest that ended."""

    def __init__(self, completed: subprocess.CompletedProcess[str]) -> None:
        self.code = completed.returncode
        self.said = completed.stdout + completed.stderr

    def section(self, name: str) -> str:
        """What stands below the heading of a test that failed."""
        heading = f"_ {name} _"
        assert heading in self.said, self.said
        text = self.said.partition(heading)[2].split("\n", 1)[1]
        return text.partition("\n____")[0].partition("\n====")[0].partition("\n----")[0]

    @property
    def summary(self) -> dict[str, str]:
        """The lines of our section by the test's name."""
        text = self.said.partition(" gpu memory ==")[2].partition("\n")[2].partition("\n====")[0]
        found = {}
        for line in text.splitlines():
            if not line.startswith("    "):
                found[line.split()[-1].partition("::")[2]] = line
        return found


Run = Callable[..., Inner]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's repository: it has all three names, in ways that break whoever imports them by mistake."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "profiler.py").write_text(TRAP)
    for name in ("formulas", "benchmarks"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(TRAP)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return folder


@pytest.fixture(scope="module")
def run_pytest(theirs: Path) -> Run:
    """Run pytest there: ``run_pytest({"test_one.py": "..."}, "-q")``."""

    def run(files: dict[str, str], *arguments: object) -> Inner:
        for name, text in files.items():
            (theirs / name).write_text(text)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))
        }
        return Inner(
            subprocess.run(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files, *map(str, arguments)],
                cwd=theirs,
                env={**environment, "COLUMNS": "200"},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        )

    return run


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def limits(run_pytest: Run, out: Path) -> Inner:
    """Every test of LIMITS, run once."""
    return run_pytest({"test_limits.py": LIMITS}, f"--gpu-memory-out={out}", "--junitxml", out / "junit.xml")


@pytest.fixture(scope="module")
def records(limits: Inner, out: Path) -> dict[str, dict[str, Any]]:
    lines = (out / "measurements.jsonl").read_text().splitlines()
    found = {record["case"]["name"].partition("::")[2]: record for record in map(json.loads, lines)}
    assert len(found) == len(lines)
    return found


def test_each_test_ends_as_it_should(limits: Inner) -> None:
    assert "12 failed, 4 passed, 1 skipped, 1 xfailed" in limits.said, limits.said
    assert limits.code == 1
    assert "Traceback" not in limits.said
    assert "exception" not in limits.said
    assert "their conftest saw 18 calls" in limits.said


def test_a_failure_says_the_peak_the_limit_and_the_tensors(limits: Inner) -> None:
    first, figures, heading, one, other = limits.section("test_over").splitlines()
    assert first == "gpu memory: peak 48.00 MiB, limit 16.00 MiB: 32.00 MiB (200.0%) over, measured on cpu"
    assert figures == "max_memory_allocated 50,331,660 bytes, limit 16,777,216 bytes"
    assert heading == "alive at the peak, by a second run of the body:"
    assert one.startswith("  24.00 MiB  inputs float32 [6291456] by aten.ones.default at ")
    assert one.endswith("/test_limits.py:13")
    assert other.startswith("  24.00 MiB  activations float32 [6291456] by aten.mul.Tensor at ")


def test_a_limit_is_held_to_the_byte(limits: Inner) -> None:
    assert "limit 24.00 MiB, pass" in limits.summary["test_exactly"]
    assert "25,165,824 bytes, limit 25,165,823 bytes" in limits.section("test_one_byte_over")


def test_a_phase_is_named_and_the_body_runs_once_where_that_is_asked(limits: Inner) -> None:
    said = limits.section("test_phases")
    assert "peak 8.00 MiB, limit 1.00 MiB: 7.00 MiB (700.0%) over, measured on cpu, in phase backward" in said
    assert "second run" not in said


def test_a_second_run_that_fails_is_said(limits: Inner) -> None:
    said = limits.section("test_not_twice")
    assert "peak 4.00 MiB, limit 1.00 MiB" in said
    assert "the second run of the body did not end as the first: AssertionError" in said


def test_a_test_s_own_error_stays_its_own(limits: Inner, records: dict[str, Any]) -> None:
    assert "ValueError: mine" in limits.section("test_own_error")
    assert "gpu memory:" not in limits.section("test_own_error")
    assert "failed" in limits.summary["test_own_error"]
    assert records["test_own_error"]["status"] == "crashed"
    assert "AssertionError: mine" in limits.section("TestCase.test_unittest_fails")
    assert records["TestCase::test_unittest_fails"]["status"] == "crashed"
    assert "test_own_skip" not in {**limits.summary, **records}


def test_unittest_s_tests_are_measured_too(limits: Inner) -> None:
    assert "peak 8.00 MiB, limit 6.00 MiB" in limits.section("TestCase.test_unittest")


def test_a_peak_that_is_not_known_is_no_peak_within_the_limit(limits: Inner) -> None:
    said = limits.section("test_own_profiler")
    assert (
        "the limit can't be held, the allocated peak is unknown (measured on cpu): the program ran a profiler" in said
    )
    assert "unknown" in limits.summary["test_own_profiler"]


def test_a_test_without_a_line_in_the_baseline_passes_as_new(limits: Inner) -> None:
    assert " new " in limits.summary["test_new[1]"]
    assert "    no line of this test in gpu-memory-baselines" in limits.said
    assert "nooom baseline update DIR --suite tests --to gpu-memory-baselines" in limits.said


def test_blocks_are_measured_by_phase(limits: Inner, records: dict[str, Any]) -> None:
    assert [phase["name"] for phase in records["test_block::step"]["phases"]] == ["block", "backward"]
    assert records["test_block::named"]["phases"][0]["tensors"]
    assert limits.summary["test_block::step"].startswith(" 8.00 MiB  measured on cpu")
    assert "gpu_memory('step') was measured in this test already" in limits.section("test_block_twice")


def test_blocks_stand_inside_a_marked_test(limits: Inner, records: dict[str, Any]) -> None:
    said = limits.section("test_block_inside")
    assert "peak 8.00 MiB, limit 6.00 MiB" in said
    assert "did not end as the first" not in said
    assert len(said.splitlines()) == 5
    assert records["test_block_inside"]["phases"][0]["peak_allocated_bytes"] > 8 * MIB
    assert [phase["name"] for phase in records["test_block_inside::inner"]["phases"]] == ["block", "later"]


def test_a_leak_is_named_by_its_bytes_and_tensors(limits: Inner) -> None:
    first, ends, heading, tensor = limits.section("test_leak").splitlines()
    assert first == "gpu memory: leaks leaks 97.66 KiB (100,000 bytes) a call"
    assert ends == "allocated after a warm-up and each of 3 calls: 97.66 KiB, 195.31 KiB, 292.97 KiB, 390.62 KiB"
    assert heading == "alive after 4 calls more:"
    assert tensor.startswith("  390.62 KiB (4 of 97.66 KiB)  inputs float32 [1000, 25] by aten.ones.default at ")


def test_a_phase_outside_of_every_measurement_is_refused(limits: Inner) -> None:
    (said,) = limits.section("test_phase_of_nothing").splitlines()
    assert "nothing is being measured here" in said
    assert "test_phase_of_nothing" in said


def test_peaks_are_properties_in_junit_s_xml(limits: Inner, out: Path) -> None:
    cases = {case.get("name"): case for case in ElementTree.parse(out / "junit.xml").iter("testcase")}
    found = {item.get("name"): item.get("value") for item in cases["test_exactly"].iter("property")}
    assert found == {"gpu_memory_peak_bytes": str(24 * MIB), "gpu_memory_evidence": "measured on cpu"}
    inside = {item.get("name") for item in cases["test_block_inside"].iter("property")}
    assert {"gpu_memory_peak_bytes", "gpu_memory::inner_peak_bytes"} <= inside


def test_what_a_mark_does_not_take_is_one_line_before_the_test_begins(
    run_pytest: Run, theirs: Path, out: Path, records: Any
) -> None:
    line = (out / "measurements.jsonl").read_text().splitlines()[0]
    (theirs / "torn.jsonl").write_text(f"{line}\n{line[:50]}")
    (theirs / "garbage.jsonl").write_text("not a measurement\n")
    (theirs / "double.jsonl").write_text(f"{line}\n{line}\n")
    done = run_pytest({"test_wrong.py": WRONG})
    assert "9 errors" in done.said.splitlines()[-1], done.said
    for name, wanted in {
        "test_key": "limit_gpu_memory: got an unexpected keyword argument 'metrik'",
        "test_size": "limit must be a size such as",
        "test_no_size": "limit_gpu_memory: missing 1 required positional argument: 'limit'",
        "test_device": "device='tpu'",
        "test_reserved": 'metric="reserved" on the cpu',
        "test_band": "gpu_memory_baseline: band must be a size",
        "test_torn": "torn.jsonl:2: the line is torn",
        "test_garbage": "garbage.jsonl:1: not JSON",
        "test_double": "double.jsonl:2: ",
    }.items():
        (said,) = done.section(f"ERROR at setup of {name}").splitlines()
        assert wanted in said
        assert said.endswith(f"(test_wrong.py::{name})")


def test_nothing_heavy_is_loaded_before_a_test_is_measured(run_pytest: Run) -> None:
    done = run_pytest({"test_light.py": LIGHT})
    assert "2 passed" in done.said, done.said
    assert "gpu memory" not in done.said
    off = run_pytest(
        {"test_light.py": LIGHT + "def test_off():\n    assert 'nooom' not in sys.modules\n"}, "-p", "no:nooom"
    )
    assert "2 passed, 1 error" in off.said
    assert "fixture 'gpu_memory' not found" in off.said


def test_a_folder_that_takes_no_records_is_a_usage_error(run_pytest: Run, theirs: Path) -> None:
    (theirs / "file").write_text("")
    done = run_pytest({"test_light.py": LIGHT}, "--gpu-memory-out=file")
    assert done.code == 4
    assert "ERROR: --gpu-memory-out" in done.said


def test_a_folder_that_pytest_would_take_for_the_root_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "test_light.py").write_text(LIGHT)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--gpu-memory-out"]
    done = subprocess.run([*command, "out"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 4
    assert "write --gpu-memory-out=out, or pytest takes that folder for the root of the tests" in done.stderr
    assert (
        subprocess.run([*command, "new"], cwd=tmp_path, capture_output=True, timeout=100, check=False).returncode == 0
    )


@pytest.fixture(scope="module")
def before(run_pytest: Run, theirs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their baselines: of a run in two processes, some of its figures moved."""
    folder = tmp_path_factory.mktemp("before")
    done = run_pytest({"test_compared.py": COMPARED}, f"--gpu-memory-out={folder}", "--gpu-memory-attribute", "-n", "2")
    assert "7 passed" in done.said, done.said
    assert len(done.summary) == 8  # the remedy for new ones, too
    assert done.said.count("    the second run of the body did not end as the first: AssertionError") == 1
    shutil.copy(folder / "measurements.jsonl", folder / "as_recorded.jsonl")
    lines = []
    for line in (folder / "measurements.jsonl").read_text().splitlines():
        record = json.loads(line)
        phase, name = record["phases"][0], record["case"]["name"].partition("::")[2]
        if name in ("test_grown", "test_less", "test_banded"):
            moved = {"test_less": 4 * MIB}.get(name, -4 * MIB)
            phase["peak_allocated_bytes"] += moved
            phase["components"]["inputs"] += moved
            phase["tensors"][0]["bytes"] += moved
        if name == "test_other_torch":
            record["fingerprint"]["torch"] = "2.4.1+cpu"
        record["fingerprint"]["transformers"] = "4.99.0"
        if name == "test_other_phases":
            phase["name"] = "backward"
        lines.append(json.dumps(record))
    (theirs / "gpu-memory-baselines" / "tests").mkdir(parents=True)
    (theirs / "gpu-memory-baselines" / "tests" / "any.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def compared(run_pytest: Run, before: Path) -> Inner:
    return run_pytest({"test_compared.py": COMPARED})


def test_what_has_grown_fails_with_what_grew_and_the_suspects(compared: Inner) -> None:
    assert "2 failed, 5 passed" in compared.said, compared.said
    said = compared.section("test_grown")
    assert said.startswith(
        "gpu memory: +4.00 MiB (+100.0%) since its baseline in gpu-memory-baselines, measured on cpu:\n"
    )
    assert "block: 4.00 MiB -> 8.00 MiB, +4.00 MiB (+100.0%), regression (band 8.19 KiB)" in said
    assert "+4.00 MiB  component inputs" in said
    assert "transformers 4.99.0 -> " in said
    assert "alive at the peak, by a second run of the body:" in said


def test_what_takes_less_or_the_same_passes_and_is_said(compared: Inner) -> None:
    assert "baseline 8.00 MiB, improvement" in compared.summary["test_less"]
    assert "    block: 8.00 MiB -> 4.00 MiB, -4.00 MiB (-50.0%), improvement" in compared.said
    assert "baseline 4.00 MiB, pass" in compared.summary["test_same"]
    assert "baseline 4.00 MiB, pass" in compared.summary["test_banded"]


def test_what_is_not_comparable_passes_and_is_said(compared: Inner) -> None:
    assert "not_comparable" in compared.summary["test_other_torch"]
    assert "    not comparable with its line in gpu-memory-baselines: torch 2.4 -> 2." in compared.said


def test_other_phases_are_named(compared: Inner) -> None:
    said = compared.section("test_other_phases")
    assert "other phases than its baseline" in said
    assert "backward: in the baseline (" in said


def test_nothing_to_compare_with_fails_where_that_is_strict(run_pytest: Run, before: Path) -> None:
    wanted = "test_other_torch or test_less or test_unheard"
    more = {"test_compared.py": COMPARED + "def test_unheard(torch):\n    taken(torch, 1)\n"}
    done = run_pytest(more, "--gpu-memory-strict", "-k", wanted)
    assert "2 failed, 1 passed" in done.said, done.said
    assert "not comparable with its line in gpu-memory-baselines" in done.section("test_other_torch")
    assert "no line of this test in gpu-memory-baselines" in done.section("test_unheard")
    assert "(--gpu-memory-strict)" in done.section("test_unheard")


def test_nooom_check_takes_the_records(before: Path, theirs: Path, nooom: Any) -> None:
    done = nooom(
        "check", "--baseline", before / "as_recorded.jsonl", "--current", before / "measurements.jsonl", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["pass"] == 8
    grown = nooom(
        "check", "--baseline", theirs / "gpu-memory-baselines", "--current", before / "measurements.jsonl", "--json"
    )
    assert grown.returncode == 1
    found = {row["case"].partition("::")[2]: row["state"] for row in json.loads(grown.stdout)["rows"]}
    assert found["test_grown"] == "regression"


def test_nooom_baseline_takes_them_too(before: Path, tmp_path: Path, nooom: Any) -> None:
    journal = before / "measurements.jsonl"
    done = nooom("baseline", "update", journal, "--suite", "tests", "--to", tmp_path / "gpu-memory-baselines")
    assert done.returncode == 0, done.stderr
    assert "7 cases: 7 new" in done.stdout
    done = nooom("check", "--baseline", tmp_path / "gpu-memory-baselines", "--current", journal, "--json")
    assert json.loads(done.stdout)["counts"]["pass"] == 8, done.stderr


def test_the_page_s_example_says_what_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n# test_memory.py\n(.*?)```.*?says:\n\n```\n(.*?)```", page, re.S)
    assert example
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_memory.py").write_text(example[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_memory.py"],
        cwd=folder, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    for line in example[2].splitlines():
        assert line in done.stdout.splitlines()
    assert "1 failed, 1 passed" in done.stdout


SKIPS = """
import pytest

def test_skipped_inside(gpu_memory):
    with gpu_memory("step"):
        pytest.skip("theirs")

@pytest.mark.parametrize("given", [{"repeats": "3"}, {"repeats": 1}, {"slack_bytes": None}, {"function": 5}])
def test_arguments(gpu_memory, given):
    gpu_memory.no_leak(**{"function": list, **given})
"""


def test_a_skip_leaves_no_record_and_wrong_arguments_are_one_line(run_pytest: Run, tmp_path: Path) -> None:
    done = run_pytest({"test_skips.py": SKIPS}, f"--gpu-memory-out={tmp_path / 'out'}")
    assert "4 failed, 1 skipped" in done.said, done.said
    assert done.said.count("no_leak() wants repeats, an integer of 2 or more") >= 3
    assert "no_leak() wants a function to call, not int" in done.said
    assert "Traceback" not in done.said
    journal = tmp_path / "out" / "measurements.jsonl"
    assert not journal.exists() or journal.read_text() == ""
