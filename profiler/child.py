"""One case in one fresh process: whatever happens to the child becomes an outcome, never a lost sweep."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import nooom
from nooom.formulas.errors import CannotMeasureError

START_LIMIT_S = 300.0
"""How long a server may take to import the libraries, from a disk that nobody has read yet, and a child to start."""
_LOG_TAIL_BYTES = 65_536
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from nooom.profiler.server import main; main()"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a child ended, and everything it said until then."""

    status: str
    """ok, oom, timeout, crashed or killed."""
    answer: dict[str, Any] = field(default_factory=dict)
    """The child's last word (event ``done`` or ``failed``); empty when it died without one."""
    phase: str | None = None
    """The phase it was in, when it did not finish."""
    message: str | None = None
    log: str = ""
    """The end of what the child printed."""


def can_fork() -> bool:
    """Linux only: macOS has fork, but its libraries forbid using it after they were imported."""
    return sys.platform == "linux" and hasattr(socket, "recv_fds")


class Children:
    """Runs jobs, each in a fresh process: forks of one server where there is fork, new interpreters elsewhere.

    Args:
        preload: modules that the server imports before the first fork.
        environment: the children's environment; the search path is passed explicitly, so PYTHONPATH has no say.
        fork: False starts a new interpreter for each job.
    """

    def __init__(
        self,
        preload: list[str],
        environment: Mapping[str, str] | None = None,
        *,
        fork: bool | None = None,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._preload = preload
        self._environment = _clean(os.environ if environment is None else environment)
        self._fork = can_fork() if fork is None else fork
        self._start_limit_s = start_limit_s
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lines = b""
        self.files: dict[str, Any] = {}
        """Where the server found each module, or its import error."""

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and with it whatever still runs."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(timeout=2)
            if self._server.poll() is None:
                self._server.kill()
                self._server.wait()
            self._server = None

    def stop_forking(self) -> bool:
        """Start a new interpreter for each job from now on; False where that is so already."""
        self.close()
        forked, self._fork = self._fork, False
        return forked

    def run(
        self, job: Mapping[str, Any], *, timeout_s: float, on_phase: Callable[[str], None] = lambda phase: None
    ) -> Outcome:
        """Run one job to its end, its time limit or its death.  ^C kills the child and is raised again."""
        with tempfile.TemporaryFile() as log:
            talk = self._forked(log) if self._fork else self._spawned(log)
            try:
                outcome = talk.listen(job, timeout_s=timeout_s, start_limit_s=self._start_limit_s, on_phase=on_phase)
            finally:
                talk.kill()
            return Outcome(**{**vars(outcome), "log": _tail(log)})

    def _forked(self, log: IO[bytes]) -> _Talk:
        if self._control is None or self._server is None or self._server.poll() is not None:
            self._start_server()
        assert self._control is not None
        job_read, job_write = os.pipe()
        answer_read, answer_write = os.pipe()
        try:
            socket.send_fds(self._control, [b"."], [job_read, answer_write, log.fileno()])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise CannotMeasureError("the process that starts the cases died; run again") from error
        finally:
            os.close(job_read)
            os.close(answer_write)
        pid = self._hear("forked", time.monotonic() + self._start_limit_s)["pid"]
        return _Talk(pid, job_write, answer_read, self._exit_code_of)

    def _exit_code_of(self, pid: int, deadline: float) -> int | None:
        """What the server says of a child that ended; None when it says nothing in time, or died itself."""
        while True:
            try:
                told = self._hear("exited", deadline)
            except (CannotMeasureError, TimeoutError):
                return None
            if told["pid"] == pid:
                return int(told["code"])

    def _spawned(self, log: IO[bytes]) -> _Talk:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, json.dumps(search_path()), "once"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=self._environment,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def exit_code(pid: int, deadline: float) -> int | None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=max(deadline - time.monotonic(), 0))
            return None

        job_write, answer_read = os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno())
        process.stdin.close()
        process.stdout.close()
        return _Talk(process.pid, job_write, answer_read, exit_code)

    def _start_server(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        self._lines = b""
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, json.dumps(search_path()), "fork", str(theirs.fileno()),
                 *self._preload],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr if _has_fileno(sys.stderr) else subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=self._environment,
                start_new_session=True,
            )  # fmt: skip
        self._control = ours
        self.files = self._hear("ready", time.monotonic() + self._start_limit_s)["files"]
        for name, found in self.files.items():
            if isinstance(found, dict):
                raise CannotMeasureError(f"a case's process can't import {name}: {found['error']}")
        if self.files["nooom"] != nooom.__file__:
            raise CannotMeasureError(f"cases would run {self.files['nooom']}, not this nooom ({nooom.__file__})")

    def _hear(self, event: str, deadline: float) -> dict[str, Any]:
        """The server's next message of that kind; others are of children long since given up, and dropped."""
        while True:
            head, newline, rest = self._lines.partition(b"\n")
            if newline:
                self._lines = rest
                told: dict[str, Any] = json.loads(head)
                if told["event"] == event:
                    return told
                continue
            assert self._control is not None
            if not select.select([self._control], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise CannotMeasureError(f"the process that starts the cases gave no sign in {self._start_limit_s:g} s")
            received = self._control.recv(65_536)
            if not received:
                raise CannotMeasureError("the process that starts the cases died while starting")
            self._lines += received


class _Talk:
    """The runner's end of one child: its pipes, its pid, and how to learn its exit code."""

    def __init__(self, pid: int, jobs: int, answers: int, exit_code: Callable[[int, float], int | None]) -> None:
        self._pid, self._jobs, self._answers, self._exit_code = pid, jobs, answers, exit_code
        self._phase: str | None = None
        self._answer: dict[str, Any] = {}
        self._gone = False

    def listen(
        self, job: Mapping[str, Any], *, timeout_s: float, start_limit_s: float, on_phase: Callable[[str], None]
    ) -> Outcome:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._jobs, (json.dumps(job) + "\n").encode())
        deadline = time.monotonic() + start_limit_s
        started, buffered = False, b""
        while True:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                if started:
                    return self._ended("timeout", f"did not finish within {timeout_s:g} s")
                return self._ended("crashed", f"did not start within {start_limit_s:g} s")
            received = os.read(self._answers, 65_536)
            if not received:
                return self._died()
            *lines, buffered = (buffered + received).split(b"\n")
            for line in lines:
                told = json.loads(line)
                if told["event"] == "started":
                    started, deadline = True, time.monotonic() + timeout_s
                elif told["event"] == "phase":
                    self._phase = told["name"]
                    on_phase(told["name"])
                else:
                    self._answer = told

    def kill(self) -> None:
        """End the child and whatever it started; harmless when it has ended."""
        # Also when it ended by itself: what it started may live on in its group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        if not self._gone:
            self._exit_code(self._pid, time.monotonic() + 5)
            self._gone = True
        for fd in (self._jobs, self._answers):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _died(self) -> Outcome:
        code = self._exit_code(self._pid, time.monotonic() + 5)
        self._gone = code is not None
        if self._answer.get("event") == "done":
            return self._ended("ok", None)
        if self._answer.get("event") == "failed":
            oom = self._answer["kind"] == "oom"
            return self._ended("oom" if oom else "crashed", self._answer["message"])
        if code in (-signal.SIGKILL, -signal.SIGTERM, None):
            return self._ended("killed", _killed(code))
        return self._ended("crashed", f"died of {_signal_name(code)}" if code < 0 else f"ended with exit code {code}")

    def _ended(self, status: str, message: str | None) -> Outcome:
        return Outcome(status=status, answer=self._answer, phase=self._phase, message=message)


def _killed(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "killed by signal 9: by someone, or by the kernel because the machine ran out of memory"
    return "killed" if code is None else f"killed by {_signal_name(code)}"


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def search_path() -> list[str]:
    """The parent's search path without the folder it stands in, unless that folder is where nooom lives.

    Where nooom lies among other packages, they keep their place: an environment before them may have its own versions.
    """
    home, here = Path(nooom.__file__).resolve().parent.parent, Path.cwd().resolve()
    places = {entry: Path(entry).resolve() for entry in sys.path if entry and os.path.isabs(entry)}
    kept = [entry for entry, place in places.items() if place == home or place != here]
    return kept if home in places.values() else [str(home), *kept]


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    dropped = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONINSPECT")
    return {key: value for key, value in environment.items() if key not in dropped}


def _has_fileno(stream: Any) -> bool:
    try:
        stream.fileno()
    except Exception:
        return False
    return True


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(size - _LOG_TAIL_BYTES, 0))
    return log.read().decode("utf-8", "replace")
