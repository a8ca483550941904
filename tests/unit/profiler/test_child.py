"""One case in one fresh process: every way in which a child can end is an outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.errors import CannotMeasureError
from nooom.profiler.child import Children, Outcome, can_fork, search_path

SUPPORT = Path(__file__).resolve().parents[2] / "support"

pytestmark = pytest.mark.skipif(not can_fork(), reason="no fork server here; the spawned way is tested on its own")


@pytest.fixture(autouse=True)
def _support_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SUPPORT))


@pytest.fixture
def children() -> Iterator[Children]:
    with Children(["fake_workloads"]) as made:
        yield made


def job(workload: str, **arguments: Any) -> dict[str, Any]:
    return {
        "workload": f"fake_workloads:{workload}",
        "instrument": "fake_workloads:FakeInstrument",
        "arguments": arguments,
    }


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:  # gone between the two looks
        return False


def wait_for(path: Path, limit_s: float = 30) -> int:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path} never appeared")


def test_a_case_reports_its_phases_and_its_prints_go_to_the_log(children: Children) -> None:
    phases: list[str] = []
    outcome = children.run(job("fine"), timeout_s=30, on_phase=phases.append)
    assert outcome.status == "ok"
    assert [p["name"] for p in outcome.answer["phases"]] == ["load", "forward", "backward"]
    assert [p["peak_allocated_bytes"] for p in outcome.answer["phases"]] == [4, 7, 8]
    assert [p["name"] for p in outcome.answer["first"]] == ["forward", "backward"]
    assert phases[:3] == ["load", "forward", "backward"]
    assert "printed by the child" in outcome.log


@pytest.mark.alone
def test_each_case_has_a_process_of_its_own_and_starting_one_is_cheap(
    children: Children, patience: Callable[[], float]
) -> None:
    first = children.run(job("fine"), timeout_s=30)
    began = time.perf_counter()
    second = children.run(job("fine"), timeout_s=30)
    assert time.perf_counter() - began < 0.8 * patience()
    assert first.answer["facts"]["pid"] != second.answer["facts"]["pid"]


def test_a_failing_case_names_its_error_and_phase_and_keeps_what_was_read(children: Children) -> None:
    outcome = children.run(job("fails"), timeout_s=30)
    assert (outcome.status, outcome.message) == ("crashed", "ValueError: the loss is not a number")
    assert outcome.answer["phase"] == "forward"
    assert [p["name"] for p in outcome.answer["phases"]] == ["load"]
    assert "ValueError" in outcome.log


def test_a_case_that_takes_too_long_is_ended(children: Children, tmp_path: Path) -> None:
    outcome = children.run(job("sleeps", pid_file=str(tmp_path / "pid")), timeout_s=0.5)
    assert (outcome.status, outcome.phase) == ("timeout", "load")
    assert not is_alive(wait_for(tmp_path / "pid"))


def test_a_timeout_takes_the_childs_own_children_along(children: Children, tmp_path: Path) -> None:
    arguments = {"pid_file": str(tmp_path / "pid"), "grandchild": str(tmp_path / "grandchild")}
    assert children.run(job("sleeps", **arguments), timeout_s=1.5).status == "timeout"
    time.sleep(0.1)
    assert not is_alive(wait_for(tmp_path / "grandchild"))


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [("SIGKILL", "killed", "signal 9"), ("SIGTERM", "killed", "SIGTERM"), ("SIGSEGV", "crashed", "SIGSEGV")],
)
def test_a_child_that_dies_of_a_signal(children: Children, name: str, status: str, says: str) -> None:
    outcome = children.run(job("dies", signal=name), timeout_s=30)
    assert outcome.status == status
    assert says in (outcome.message or "")
    assert children.run(job("fine"), timeout_s=30).status == "ok"


def test_a_child_that_exits_behind_our_back_has_crashed(children: Children) -> None:
    outcome = children.run(job("exits"), timeout_s=30)
    assert (outcome.status, outcome.message) == ("crashed", "ended with exit code 7")


def test_an_allocation_that_fails_is_an_oom_with_its_request(children: Children) -> None:
    outcome = children.run(job("allocates", bytes=1 << 50), timeout_s=60)
    assert outcome.status == "oom"
    assert outcome.answer["error"]["tried_bytes"] == 1 << 50
    assert outcome.answer["phase"] == "forward"


def test_the_memory_limit_turns_running_out_into_an_oom(children: Children) -> None:
    limited = {**job("allocates", bytes=8 << 30), "memory_limit_bytes": 4 << 30}
    outcome = children.run(limited, timeout_s=60)
    assert (outcome.status, outcome.answer["error"]["tried_bytes"]) == ("oom", 8 << 30)


def test_a_child_that_does_not_start_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Children(["fake_workloads"], start_limit_s=60) as children:
        children.run(job("fine"), timeout_s=30)
        children._start_limit_s = 0.3
        server = children._server
        assert server is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(CannotMeasureError, match="no sign in"):
                children.run(job("fine"), timeout_s=30)
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_a_server_that_was_killed_is_replaced_for_the_next_case(children: Children) -> None:
    children.run(job("fine"), timeout_s=30)
    assert children._server is not None
    children._server.kill()
    children._server.wait()
    assert children.run(job("fine"), timeout_s=30).status == "ok"


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with Children(["no_such_module"]) as children, pytest.raises(CannotMeasureError, match="no_such_module"):
        children.run(job("fine"), timeout_s=30)


def test_the_folder_one_stands_in_does_not_change_what_a_child_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("profiler", "nooom", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Children(["fake_workloads"]) as children:
        outcome = children.run(job("fine"), timeout_s=30)
    assert outcome.status == "ok"
    assert str(tmp_path) not in outcome.answer["facts"]["path"]


def test_where_nooom_lies_among_packages_those_before_them_stay_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment in a layer over another one has its own versions; nooom may be of the one below."""
    layer, below, here = (tmp_path / name for name in ("layer", "below", "here"))
    for folder in (layer, below, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("nooom.__file__", str(below / "nooom" / "__init__.py"))
    monkeypatch.setattr(sys, "path", ["", str(here), "relative", str(layer), str(below), str(layer)])
    assert search_path() == [str(layer), str(below)]
    monkeypatch.chdir(below)
    assert search_path() == [str(here), str(layer), str(below)]
    monkeypatch.setattr(sys, "path", [str(layer)])
    assert search_path() == [str(below), str(layer)]


def test_no_child_outlives_its_runner(tmp_path: Path) -> None:
    """kill -9 of the runner: the child and what it started are gone within two seconds."""
    pid_file, grandchild = tmp_path / "pid", tmp_path / "grandchild"
    program = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(SUPPORT)!r})
        from nooom.profiler.child import Children
        job = {job("sleeps", pid_file=str(pid_file), grandchild=str(grandchild))!r}
        Children(["fake_workloads"]).run(job, timeout_s=600)
    """)
    root = Path(__file__).resolve().parents[3]
    runner = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(root)})
    pids = [wait_for(pid_file), wait_for(grandchild)]
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + 2
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_alive, pids))


def test_a_server_that_still_imports_does_not_outlive_its_runner_either(tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(60)\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from nooom.profiler.child import Children\nChildren(['slow_import']).run({}, timeout_s=60)\n"
    )
    root = Path(__file__).resolve().parents[3]
    runner = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(root)})
    pid = wait_for(tmp_path / "pid")
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + 2
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)


def test_where_there_is_no_fork_a_new_interpreter_does_the_same() -> None:
    with Children(["fake_workloads"], fork=False) as children:
        outcomes: list[Outcome] = [
            children.run(job("fine"), timeout_s=60),
            children.run(job("fails"), timeout_s=60),
            children.run(job("dies", signal="SIGKILL"), timeout_s=60),
            children.run(job("exits"), timeout_s=60),
        ]
    assert [outcome.status for outcome in outcomes] == ["ok", "crashed", "killed", "crashed"]
    assert "printed by the child" in outcomes[0].log
