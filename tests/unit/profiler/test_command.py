"""Commands without a GPU: how they end, what their Python finds, and how reports and accounts become figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.gpus import find
from nooom.profiler import command
from nooom.profiler.outside import ProcessPeaks
from nooom.profiler.phantom.accounts import MAX_GPUS, Account, uuid_of

A100 = find("a100-80gb")
FIGURES = {"max_allocated_bytes": 1, "max_reserved_bytes": 2, "max_active_bytes": 3}


def report(pid: int, *uuids: str, **rest: Any) -> dict[str, Any]:
    gpus = [{"uuid": uuid, **FIGURES} for uuid in uuids]
    return {"pid": pid, "command": ["python", "train.py"], "gpus": gpus, "oom": None, "invented": None, **rest}


def account(pid: int, *peaks: int) -> Account:
    return Account(pid=pid, peak_bytes=(*peaks, *[0] * (MAX_GPUS - len(peaks))), reads=0, refusals=0)


@pytest.mark.parametrize(("ends", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 128 + signal.SIGKILL)])
def test_the_exit_code_is_the_commands_own(ends: str, code: int) -> None:
    assert command.run(["bash", "-c", ends]) == command.Ended(exit_code=code)


def test_what_does_not_start_is_told_apart_as_a_shell_does(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("")
    with pytest.raises(command.CommandNotFoundError) as missing:
        command.run(["no-such-command"])
    with pytest.raises(command.CommandNotRunnableError) as forbidden:
        command.run([str(tmp_path / "script")])
    assert (missing.value.exit_code, forbidden.value.exit_code) == (127, 126)


def printed(program: str, **environment: str) -> list[str]:
    """The lines that a program prints under the hook."""
    settings = {"nooom": "", "reports": "", "phantom": False, "torch_libraries": None, "snapshot": None}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=command._environment({"PATH": os.environ["PATH"], **environment}, settings),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_search_path_is_what_it_would_be(tmp_path: Path) -> None:
    program = "import sys; print(*sys.path, sep='\\n')"
    plain = [sys.executable, "-c", program]
    for path in ({}, {"PYTHONPATH": ""}, {"PYTHONPATH": f"{tmp_path}{os.pathsep}"}):
        alone = subprocess.run(
            plain, env={"PATH": os.environ["PATH"], **path}, capture_output=True, text=True, check=True
        )
        assert printed(program, **path) == alone.stdout.splitlines()


def test_a_python_that_never_imports_torch_loads_nothing_of_ours() -> None:
    assert printed("import sys; print('torch' in sys.modules, 'nooom' in sys.modules)") == ["False False"]


def test_asking_for_torch_is_not_importing_it(tmp_path: Path) -> None:
    """A torch that is found twice before it is imported is watched all the same, and keeps its own loader's methods."""
    (tmp_path / "torch.py").write_text("")
    program = (
        "import importlib.util, sys\n"
        "importlib.util.find_spec('torch')\n"
        "watching = type(sys.meta_path[0]).__name__\n"
        "import torch\n"
        "print(watching, type(sys.meta_path[0]).__name__, 'exec_module' in vars(torch.__loader__))\n"
    )
    settings = {"nooom": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=command._environment({"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}, settings),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    watching, afterwards, left = done.stdout.split()
    assert (watching, left) == ("_Watch", "False")
    assert afterwards != "_Watch"
    assert done.stderr.startswith("nooom: process ")
    assert "is not measured: FileNotFoundError" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_program_without_a_gpu_leaves_no_report() -> None:
    assert command.run([sys.executable, "-c", "import torch; torch.ones(2)"]).processes == ()


def test_reports_are_read_in_the_order_in_which_processes_began(tmp_path: Path) -> None:
    for pid, began in ((7, 300), (9, 20)):
        (tmp_path / f"{pid}-{began}.json").write_text(json.dumps(report(pid)))
    (tmp_path / "8-100.json").write_text("{torn")
    (tmp_path / "6-50.new").write_text("")
    assert [found["pid"] for found in command._read(tmp_path)] == [9, 7]


def test_a_phantoms_accounts_give_each_process_its_share_of_the_device() -> None:
    uuids = [str(uuid_of(A100, number)) for number in range(2)]
    (one, other, silent) = command._on_phantom(
        [report(10, uuids[1]), report(11, invented=[["train.py:3", 2]])],
        [account(10, 0, 500), account(11, 600), account(10, 0, 400), account(12, 0, 700), account(13)],
        A100,
    )
    assert one.gpus == (command.OnGpu(index=1, device_bytes=500, **FIGURES),)
    assert other.gpus == (command.OnGpu(index=0, device_bytes=600, **dict.fromkeys(FIGURES)),)
    assert (other.largest("max_allocated_bytes"), other.invented) == (None, (("train.py:3", 2),))
    assert (silent.pid, silent.command, silent.gpus[0].index, silent.largest("device_bytes")) == (12, None, 1, 700)


def test_a_real_gpu_is_known_by_its_uuid_and_a_killed_process_by_what_nvml_saw() -> None:
    peaks = ProcessPeaks()
    peaks._indexes = {"aa": 0, "bb": 1}
    peaks.add("bb", {10: 500, 99: 1})
    peaks.add("bb", {10: 400, 11: None})
    peaks.add("aa", {12: 300})
    measured, unseen, killed = command._on_cuda([report(10, "bb"), report(11, "aa"), report(12)], peaks)
    assert measured.gpus == (command.OnGpu(index=1, device_bytes=500, **FIGURES),)
    assert unseen.gpus == (command.OnGpu(index=0, device_bytes=None, **FIGURES),)
    assert killed.gpus == (command.OnGpu(index=0, device_bytes=300, **dict.fromkeys(FIGURES)),)


def test_sampling_without_nvml_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with ProcessPeaks(interval_s=0.001) as peaks:
        pass
    assert peaks.of(1) == {}
