"""Workloads and an instrument for tests of the process machinery: imported by the children, so a module of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nooom.profiler.instruments import Reading


class FakeInstrument:
    """Says that each phase took as many bytes as its name has letters."""

    name = "fake"
    torch_device = "cpu"

    def __init__(self) -> None:
        self.phase = ""

    def open(self) -> None:
        pass

    def phase_begins(self, name: str) -> None:
        self.phase = name

    def settle(self) -> None:
        pass

    def read(self) -> Reading:
        return Reading(peak_allocated_bytes=len(self.phase), end_allocated_bytes=0)

    def breathe(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"gpu": None}

    def close(self) -> None:
        pass


def fine(arguments: dict[str, Any], recorder: Any) -> dict[str, Any]:
    recorder.enter("load")
    print("printed by the child")
    for _ in range(3):
        with recorder.step():
            recorder.enter("forward")
            recorder.enter("backward")
    return {"pid": os.getpid(), "path": sys.path, "cwd": os.getcwd()}


def fails(arguments: dict[str, Any], recorder: Any) -> None:
    recorder.enter("load")
    with recorder.step():
        recorder.enter("forward")
        raise ValueError("the loss is\nnot a number")


def sleeps(arguments: dict[str, Any], recorder: Any) -> None:
    recorder.enter("load")
    Path(arguments["pid_file"]).write_text(str(os.getpid()))
    if arguments.get("grandchild"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(arguments["grandchild"]).write_text(str(child.pid))
    time.sleep(600)


def dies(arguments: dict[str, Any], recorder: Any) -> None:
    recorder.enter("load")
    os.kill(os.getpid(), getattr(signal, arguments["signal"]))


def exits(arguments: dict[str, Any], recorder: Any) -> None:
    os._exit(7)


def allocates(arguments: dict[str, Any], recorder: Any) -> None:
    import torch

    recorder.enter("load")
    with recorder.step():
        recorder.enter("forward")
        torch.empty(arguments["bytes"], dtype=torch.uint8)
