"""``nooom doctor``: what is here, and what would stop a run, each with its remedy.  Imports no torch: it is instant."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from nooom.benchmarks.reports.console import console as new_console
from nooom.formulas.errors import CannotMeasureError
from nooom.profiler import hardware
from nooom.profiler.child import can_fork
from nooom.profiler.instruments.rss import reset_peak_rss
from nooom.profiler.phantom import builder, launcher

_RANGES = {"torch": ((2, 11), (2, 15)), "transformers": ((5, 17), (5, 25)), "peft": ((0, 19), (0, 22)),
           "accelerate": ((1, 10), (2, 0))}  # fmt: skip
_ROOM_BYTES = 2 << 30
_PHANTOM = "phantom GPU"
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
    checks = examine()
    devices = _devices(checks)
    if as_json:
        document = {"schema_version": 1, "devices": devices, "checks": [dataclasses.asdict(check) for check in checks]}
        print(json.dumps(document))
    else:
        render(checks, devices)
    return 0 if devices else 3


def _devices(checks: Sequence[Check]) -> list[str]:
    """Where cases can run: nowhere with a problem, on a GPU only with a torch that can use it, and dry anywhere."""
    if any(check.state == "problem" for check in checks):
        return []
    found = ["cpu", "cuda"] if hardware.find_gpus() and not hardware.torch_build().without_cuda else ["cpu"]
    phantom = any(check.name == _PHANTOM and check.state == "ok" for check in checks)
    return [*found, *(["phantom"] if phantom else []), "dryrun"]


def examine() -> list[Check]:
    """Every check, in the order in which they are shown."""
    return list(_checks())


def _checks() -> Iterator[Check]:
    yield _python()
    for name, (low, high) in _RANGES.items():
        yield _library(name, low, high)
    yield from _nvml_binding()
    yield from _gpus()
    yield _phantom()
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
    version = hardware.torch_build().version if name == "torch" else hardware.version(name)
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
        if gpu.processes:
            yield _busy(gpu.index, gpu.processes)
    build = hardware.torch_build()
    if gpus and build.without_cuda:
        found, remedy = f"{build.version} can't use the GPU", "install a CUDA build of torch"
        yield Check(name="torch build", state="note", found=found, remedy=remedy)


def _phantom() -> Check:
    """Whether a GPU that isn't there could be played."""
    try:
        launcher.refuse_a_real_driver()
        torch = builder.check()
    except CannotMeasureError as error:
        found, _, remedy = str(error).partition("; ")
        return Check(name=_PHANTOM, state="note", found=found, remedy=remedy)
    return Check(name=_PHANTOM, state="ok", found=f"can be played, on torch {torch.version}")


def _busy(index: int, processes: Mapping[int, int | None]) -> Check:
    sizes = {pid: "unknown" if size is None else f"{size / 2**30:.2f} GiB" for pid, size in processes.items()}
    return Check(
        name=f"GPU {index} processes",
        state="note",
        found=", ".join(f"{pid} ({size})" for pid, size in sizes.items()),
        remedy="a run refuses a busy GPU: end them, or hide it with CUDA_VISIBLE_DEVICES",
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
    try:
        free = shutil.disk_usage(os.getcwd()).free
    except FileNotFoundError:
        return Check(name="disk", state="problem", found="this folder was deleted", remedy="cd to one that exists")
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
    if os.environ.get("HF_HUB_OFFLINE"):
        remedy = "a model that is neither in the zoo nor on disk can't be looked up"
        yield Check(name="HF_HUB_OFFLINE", state="note", found=os.environ["HF_HUB_OFFLINE"], remedy=remedy)
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        yield Check(name="CUDA_VISIBLE_DEVICES", state="note", found=repr(os.environ["CUDA_VISIBLE_DEVICES"]))


def render(checks: Sequence[Check], devices: Sequence[str]) -> None:
    """The checks as a table on stdout, and where that leaves us."""
    table = Table("", "", "found", "remedy", box=None, pad_edge=False)
    for check in checks:
        table.add_row(Text.from_markup(_STATES[check.state]), check.name, check.found, check.remedy)
    console = new_console()
    console.print(table)
    console.print(f"\nnooom can run cases on: {', '.join(devices) or 'nothing here'}")
