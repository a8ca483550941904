"""Suites: the ones that ship, grids, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nooom.benchmarks.suites.suite import as_toml, load_suite, names
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError


def test_demo_shows_every_workload_in_several_shapes_on_both_devices() -> None:
    for device in ("cpu", "cuda"):
        cases = load_suite("demo", device).cases
        for workload in ("inference", "sft", "lora", "grpo"):
            assert sum(case.workload == workload for case in cases) >= 2, (device, workload)
    assert {case.model for case in load_suite("demo", "cpu").cases} == {"HuggingFaceTB/SmolLM2-135M"}


def test_smoke_is_eight_quick_cases() -> None:
    cases = load_suite("smoke", "cpu").cases
    assert len(cases) == len({case.case_id() for case in cases}) == 8
    assert {case.workload for case in cases} == {"inference", "sft", "lora", "grpo"}


@pytest.mark.parametrize(("name", "device"), [*((name, "cuda") for name in names()), ("demo", "cpu"), ("smoke", "cpu")])
def test_no_suite_has_a_case_twice(name: str, device: str) -> None:
    ids = [case.case_id() for case in load_suite(name, device).cases]
    assert len(ids) == len(set(ids))


def test_lists_make_a_grid(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[defaults]\nmodel = "m"\nworkload = "sft"\n[[case]]\nseq = [64, 128]\nbatch = [1, 2]\n')
    assert [(c.seq, c.batch) for c in load_suite(str(path), "cpu").cases] == [(64, 1), (64, 2), (128, 1), (128, 2)]


@pytest.mark.parametrize("name", names())
def test_cases_that_are_written_are_read_as_they_were(tmp_path: Path, name: str) -> None:
    cases = (*load_suite(name, "cuda").cases, Case(model='a "strange" \\ näme\n', workload="lora", lora_dropout=1e-5))
    path = tmp_path / "written.toml"
    path.write_text(as_toml(cases), encoding="utf-8")
    assert load_suite(str(path), "cuda").cases == cases


def test_a_case_may_be_for_several_devices_and_expected_to_run_out_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[defaults]\nmodel = "m"\nworkload = "sft"\non = ["cuda", "phantom"]\n[[case]]\nseq = 64\n'
        '[[case]]\nseq = [128, 256]\noom_on = ["h100-80gb"]\n'
    )
    for device in ("cuda", "phantom"):
        suite = load_suite(str(path), device)
        assert {case.seq: suite.oom_on.get(case, ()) for case in suite.cases} == {
            64: (),
            128: ("h100-80gb",),
            256: ("h100-80gb",),
        }
    with pytest.raises(UsageError, match="for device cpu"):
        load_suite(str(path), "cpu")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[[case]\n", "not a suite"),
        ("[[case]]\nbatch = " + "9" * 5000 + "\n", "not a suite"),
        ('[[case]]\nmodel = "m"\nworkload = "sft"\nbatch = 1' + "0" * 400 + "\n", "an integer of"),
        ('[[case]]\nmodel = "m"\nworkload = "sft"\non = "gpu"\n', "case 1: on is 'gpu'"),
        ('[[case]]\nmodel = "m"\nworkload = "sft"\noom_on = "h100"\n', "case 1: oom_on is 'h100'; did you mean h100"),
        ("[[cases]]\n", "unknown key 'cases'; did you mean case"),
        ('[[case]]\nmodel = "m"\nworkload = "sft"\nbacth = 2\n', "case 1: unknown case key 'bacth'"),
        ('[[case]]\nmodel = "m"\nworkload = "grpo"\nbatch = 3\n', "case 1: --batch 3 is not a multiple"),
        ('case = "x"\n', "[[case]] a list of tables"),
        ("case = [3]\n", "case 1: not a table"),
        ('[[case]]\nmodel = "m"\nworkload = "sft"\non = "cuda"\n', "no [[case]] for device cpu"),
        (
            '[[case]]\nmodel = "m"\nworkload = "sft"\nseq = [' + "1," * 400 + "]\nbatch = [" + "1," * 400 + "]\n",
            "160000 com",
        ),
    ],
)
def test_what_is_no_suite_is_refused_with_its_place(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        load_suite(str(path), "cpu")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_suite_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no suite 'smok'; did you mean smoke"):
        load_suite("smok", "cpu")
