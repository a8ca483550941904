"""``nooom doctor``: what is here, and what would stop a run, each with its remedy.  Imports no torch: it is instant."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nooom.profiler import hardware
from nooom.profiler.child import can_fork
from nooom.profiler.instruments.rss import reset_peak_rss

_RANGES = {"torch": ((2, 11), (2, 15)), "transformers": ((5, 17), (5, 25)), "peft": ((0, 19), (0, 22)),
           "accelerate": ((1, 10), (2, 0))}  # fmt: skip
_ROOM_BYTES = 2 << 30
_STATES = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: str
    """ok, note (a run works, something is worth knowing) or problem (it would stop a run)."""
    found: str
    remedy: str = ""


def doctor(as_json: bool) -> int:
    """Show the checks; 0 when something can be measured here, 3 when a problem stops every run."""
    checks = list(examine())
    devices = ["cpu"] + (["cuda"] if hardware.find_gpus() else [])
    if as_json:
        document = {"schema_version": 1, "devices": devices, "checks": [dataclasses.asdict(check) for check in checks]}
        print(json.dumps(document))
    else:
        _show(checks, devices)
    return 3 if any(check.state == "problem" for check in checks) else 0


def examine() -> Iterator[Check]:
    """Every check, in the order in which they are shown."""
    yield _python()
    for name, (low, high) in _RANGES.items():
        yield _library(name, low, high)
    yield from _nvml_binding()
    yield from _gpus()
    yield _memory()
    yield _disk()
    yield _processes()
    yield _peak_rss()
    yield from _environment()


def _python() -> Check:
    fine = (3, 11) <= sys.version_info[:2] < (3, 14)
    remedy = "" if fine else "use Python 3.11, 3.12 or 3.13"
    return Check(name="Python", state="ok" if fine else "problem", found=platform.python_version(), remedy=remedy)


def _library(name: str, low: tuple[int, int], high: tuple[int, int]) -> Check:
    version = hardware.version(name)
    if version is None:
        return Check(name=name, state="problem", found="not installed", remedy=f"pip install {name}")
    parts = version.split("+")[0].split(".")
    known = tuple(int(part) for part in parts[:2] if part.isdecimal())
    if low <= known < high:
        return Check(name=name, state="ok", found=version)
    tried = f"tried with {low[0]}.{low[1]} up to below {high[0]}.{high[1]}"
    return Check(name=name, state="note", found=version, remedy=f"{tried}: figures may differ")


def _nvml_binding() -> Iterator[Check]:
    deprecated, binding = hardware.version("pynvml"), hardware.version("nvidia-ml-py")
    if deprecated is not None and not _is_a_wrapper("pynvml"):
        yield Check(
            name="NVML binding",
            state="note",
            found=f"the deprecated distribution pynvml {deprecated}, which brings the same module as nvidia-ml-py",
            remedy="pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py",
        )
    elif binding is None:
        yield Check(name="NVML binding", state="note", found="not installed", remedy="pip install nvidia-ml-py")
    else:
        yield Check(name="NVML binding", state="ok", found=f"nvidia-ml-py {binding} (the module pynvml)")


def _is_a_wrapper(distribution: str) -> bool:
    """Late versions of pynvml hold no module of their own and only depend on nvidia-ml-py."""
    files = importlib.metadata.files(distribution) or []
    return not any(str(file) == "pynvml.py" or str(file).startswith("pynvml/") for file in files)


def _gpus() -> Iterator[Check]:
    gpus = hardware.find_gpus()
    if not gpus:
        remedy = "runs measure on the CPU; for a GPU: a driver, and a CUDA build of torch"
        yield Check(name="GPU", state="note", found=hardware.looked_for(), remedy=remedy)
    for gpu in gpus:
        found = f"{gpu.name}, {gpu.total_bytes / 2**30:.1f} GiB, driver {gpu.driver}"
        yield Check(name=f"GPU {gpu.index}", state="ok", found=found)
    torch = hardware.version("torch") or ""
    if gpus and torch.endswith("+cpu"):
        yield Check(
            name="torch build",
            state="note",
            found=f"{torch} can't use the GPU",
            remedy="install a CUDA build of torch",
        )


def _memory() -> Check:
    available, limit = hardware.available_bytes(), hardware.cgroup_limit_bytes()
    found = f"{available / 2**30:.1f} GiB available"
    if limit is not None:
        found += f" (a container's limit: {limit / 2**30:.1f} GiB)"
    if available < _ROOM_BYTES:
        return Check(name="memory", state="note", found=found, remedy="large CPU cases will end as oom")
    return Check(name="memory", state="ok", found=found)


def _disk() -> Check:
    free = shutil.disk_usage(os.getcwd()).free
    found = f"{free / 2**30:.1f} GiB free in {os.getcwd()}"
    if free < 64 << 20:
        return Check(name="disk", state="problem", found=found, remedy="results go here: make room, or use --out")
    return Check(name="disk", state="ok", found=found)


def _processes() -> Check:
    if can_fork():
        return Check(name="cases' processes", state="ok", found="forked from a server that has imported the libraries")
    return Check(
        name="cases' processes", state="note", found="new interpreters: each case imports torch again (seconds)"
    )


def _peak_rss() -> Check:
    if reset_peak_rss():
        return Check(name="peak RSS", state="ok", found="per phase")
    return Check(name="peak RSS", state="note", found="only since the process began: later, lower phases show null")


def _environment() -> Iterator[Check]:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if os.environ.get(name):
            remedy = "cases ignore it: say it with --allocator, where it becomes part of the case"
            yield Check(name=name, state="note", found=os.environ[name], remedy=remedy)
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        yield Check(name="CUDA_VISIBLE_DEVICES", state="note", found=repr(os.environ["CUDA_VISIBLE_DEVICES"]))


def _show(checks: list[Check], devices: list[str]) -> None:
    table = Table("", "", "found", "remedy", box=None, pad_edge=False)
    for check in checks:
        table.add_row(_STATES[check.state], escape(check.name), escape(check.found), escape(check.remedy))
    console = Console()
    console.print(table)
    console.print(f"\nnooom can measure on: {', '.join(devices)}")
