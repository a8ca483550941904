"""The fork server: imports the libraries once, does nothing else, and forks one child for each case.

Importing torch and transformers takes seconds; a fork of a process that has done so takes milliseconds, and children
agree to the byte.  The server must do *nothing* else: any OpenMP work in it (one matrix product) hangs every child.
It starts with an explicit ``sys.path`` in safe-path mode, so that the folder the user stands in can't put its own
``profiler/`` or ``torch/`` in front of ours, and it reports where each module came from.

The wire is one Unix socket: the runner sends three file descriptors for each child (its job, its answers, its log); the
server answers with JSON lines: ``ready``, ``forked`` and ``exited``.  When the runner's end closes, the server kills
what it started and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from nooom.profiler.job import run

_POLL_S = 0.01
"""How often the server looks for children that ended, while it has any."""
_PR_SET_PDEATHSIG = 1


def serve(control: socket.socket, preload: list[str]) -> None:
    """Import, report, then fork until the runner's end of the socket closes."""
    _die_with(os.getppid())  # importing takes seconds, during which nobody watches the socket
    gc.disable()  # collecting while the libraries pile up their modules is a fifth of the time and frees nothing
    files = _imported(preload)
    _die_with(None)  # from here on the socket is watched, and what was started is ended first
    gc.collect()
    gc.freeze()  # children share these objects with the server; collecting them there would copy their pages
    gc.enable()
    children: set[int] = set()
    try:
        _tell(control, event="ready", files=files)
        while True:
            readable, _, _ = select.select([control], [], [], _POLL_S if children else None)
            if readable:
                request, fds, _, _ = socket.recv_fds(control, 1, 3)
                if not request:
                    return
                pid = _fork(control, fds)
                children.add(pid)
                _tell(control, event="forked", pid=pid)
            for pid in list(children):
                if (status := _ended(pid)) is not None:
                    children.discard(pid)
                    _tell(control, event="exited", pid=pid, code=os.waitstatus_to_exitcode(status))
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def _imported(preload: list[str]) -> dict[str, Any]:
    """Each module's file, or its import error: swallowed here, reported there.  ``name?`` may be missing."""
    files: dict[str, Any] = {}
    for name in ["nooom", *preload]:
        if name.endswith("?"):
            with contextlib.suppress(Exception):
                importlib.import_module(name[:-1])
            continue
        try:
            files[name] = getattr(importlib.import_module(name), "__file__", None)
        except Exception as error:
            files[name] = {"error": f"{type(error).__name__}: {error}"}
    return files


def _ended(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return status if done else None


def _fork(control: socket.socket, fds: list[int]) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        # Also here: whoever comes first, the group exists before the runner is told that it may kill it.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid
    try:
        control.close()
        _become_a_child(server, fds)
    except BaseException:
        os._exit(1)


def _become_a_child(server: int, fds: list[int]) -> NoReturn:
    os.setpgid(0, 0)
    _die_with(server)
    jobs, answers, log = fds
    for fd in (jobs, answers):
        os.set_inheritable(fd, False)  # what the child starts must not hold the runner's pipes open
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    code = 1
    try:
        with open(jobs, encoding="utf-8") as questions, open(answers, "w", encoding="utf-8") as replies:
            code = run(questions, replies)
            # _exit and not exit: threads that wait on the runner's pipe must not hold the process back.
            sys.stdout.flush()
            sys.stderr.flush()
            replies.flush()
            os._exit(code)
    finally:
        os._exit(code)


def _die_with(parent: int | None) -> None:
    """Ask Linux to kill this process when its parent dies, even by kill -9; None takes that back."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0 if parent is None else signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def _tell(control: socket.socket, **what: Any) -> None:
    control.sendall((json.dumps(what) + "\n").encode())


def main() -> None:
    """``python -P -c ... fork FD MODULE...`` or ``... once``: see ``child.py``, which starts both."""
    mode = sys.argv[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches the whole terminal group; the runner decides
    if mode == "fork":
        with socket.socket(fileno=int(sys.argv[2])) as control:
            serve(control, sys.argv[3:])
        os._exit(0)  # taking the libraries apart takes seconds, for which the runner would wait
    # One job in a process of its own, where there is no fork: stdin is the job, stdout the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    code = run(sys.stdin, answers)
    answers.flush()
    os._exit(code)
