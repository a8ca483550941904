"""Builds the phantom's library for the torch that is installed: our C, and a stub for every other call.

What torch imports is read from its own libraries, so a new release needs no list of ours.  The result is kept in a
cache by torch's version and the content of everything that went into it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.formulas.errors import CannotMeasureError
from nooom.profiler import hardware
from nooom.profiler.cache import cache

LIBRARY = "libphantom.so"
_SOURCE = Path(__file__).resolve().parent / "source"
_NAMES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
"""By these names programs open the driver and NVML; they are the one library."""

_SUPPORTED = ((2, 11), (2, 15))
_ALSO = ((2, 4),)
"""Older releases that it has been seen to work on, for measurements of their time."""
_ANY_TORCH = "NOOOM_PHANTOM_ANY_TORCH"

_LIBRARIES = ("libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so", "libtorch_cuda_linalg.so",
              "libcaffe2_nvrtc.so", "libtorch_nvshmem.so")  # fmt: skip
"""torch's libraries whose CUDA calls are answered.  libtorch_cpu.so's are its profiler's, which finds no GPU."""
_CALLS = re.compile(
    r"(__)?cuda[A-Z]\w*|cu[A-Z]\w*|(cublas|cublasLt|cudnn|cusparse|cusparseLt|cusolver|cufft|curand|nccl)[A-Z]\w*"
)
_BY_NAME = re.compile(rb"\0((?:nvml|cu)[A-Z]\w{2,60})(?=\0)")
"""What is looked up by name at run time stands as a string in torch's libraries."""
_TRITON = Path("triton", "backends", "nvidia", "driver.c")
"""Beside torch: Triton compiles it on first use and links it against the driver."""
_DRIVER_CALLS = re.compile(r"\bcu[A-Z]\w{2,60}")
_FAILS = {"nvml": 3}
"""NVML's calls that are not ours say "not supported"; all others succeed."""


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The CUDA build of torch that a phantom is for."""

    version: str
    folder: Path
    """Of its libraries."""
    headers: Path
    """Of the CUDA that it was built for."""


def installed_torch() -> Torch:
    """The torch of this interpreter.

    Raises:
        CannotMeasureError: not Linux on x86-64, no torch, a build without CUDA, a release that nobody has tried, or no
            headers of its CUDA; the message says what would help.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise CannotMeasureError(
            f"the phantom GPU needs Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
        )
    build = hardware.torch_build()
    if build.version is None:
        raise CannotMeasureError("the phantom GPU needs torch, which is not installed: pip install torch")
    if build.without_cuda:
        raise CannotMeasureError(
            f"the phantom GPU runs torch's ordinary CUDA build, and this is {build.version}; "
            "make setup-cuda builds .venv-cuda with it, or install torch from where CUDA builds are"
        )
    _check_release(build.version)
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    folder = Path((spec.submodule_search_locations or [""])[0])
    return Torch(version=build.version, folder=folder / "lib", headers=_headers(folder.parent))


def check() -> Torch:
    """Whether it could be built here; raises CannotMeasureError as :func:`build` would."""
    torch = installed_torch()
    _compiler()
    _tool("nm")
    return torch


def _check_release(version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if _SUPPORTED[0] <= release < _SUPPORTED[1] or release in _ALSO or os.environ.get(_ANY_TORCH) == "1":
        return
    raise CannotMeasureError(
        f"the phantom GPU is not known to work on torch {version}; it was tried on 2.11 to 2.14 and 2.4; "
        f"install one of them, or set {_ANY_TORCH}=1 to try"
    )


def _headers(site: Path) -> Path:
    for pattern in ("nvidia/cu*/include", "nvidia/cuda_runtime/include"):
        for folder in sorted(site.glob(pattern)):
            if (folder / "cuda_runtime_api.h").is_file() and (folder / "cuda.h").is_file():
                return folder
    raise CannotMeasureError(
        f"the headers of torch's CUDA are not beside it ({site}/nvidia): pip install nvidia-cuda-runtime "
        "in the version that torch asks for"
    )


def build(torch: Torch | None = None) -> Path:
    """The folder that holds the library for this torch, built if it isn't there yet.

    Raises:
        CannotMeasureError: as :func:`installed_torch`; no C compiler, or one that fails.
    """
    torch = installed_torch() if torch is None else torch
    folder = cache("phantom") / f"torch-{torch.version}-{_identity(torch)}"
    if (folder / LIBRARY).is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    except OSError as error:
        raise CannotMeasureError(f"can't build the phantom GPU in {folder.parent}: {error.strerror}") from error
    try:
        _compile(torch, work)
        for name in _NAMES:
            (work / name).symlink_to(LIBRARY)
        with contextlib.suppress(OSError):  # another process was faster
            work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _identity(torch: Torch) -> str:
    """Of everything that goes in: our sources, torch's libraries by name, size and time, and Triton's driver."""
    digest = hashlib.sha256(f"{torch.folder} {torch.headers}".encode())
    for path in [Path(__file__), *sorted(_SOURCE.rglob("*.[ch]"))]:
        digest.update(path.read_bytes())
    for path in _libraries(torch):
        found = path.stat()
        digest.update(f"{path.name} {found.st_size} {found.st_mtime_ns}".encode())
    digest.update(_triton(torch).encode())
    return digest.hexdigest()[:16]


def _triton(torch: Torch) -> str:
    """The source of Triton's driver, or nothing where it isn't installed."""
    path = torch.folder.parent.parent / _TRITON
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _libraries(torch: Torch) -> list[Path]:
    return [path for name in _LIBRARIES if (path := torch.folder / name).is_file()]


def _compile(torch: Torch, work: Path) -> None:
    compiler = _compiler()
    objects = []
    flags = ["-std=gnu11", "-O2", "-fPIC", "-pthread", f"-I{_SOURCE / 'include'}", "-isystem", str(torch.headers)]
    for source in sorted(_SOURCE.glob("*.c")):
        objects.append(work / f"{source.stem}.o")
        _run(compiler, *flags, "-c", str(source), "-o", str(objects[-1]))
    ours = set(_symbols(objects, "--defined-only"))
    stubs = work / "stubs.c"
    stubs.write_text(_stubs(sorted(_wanted(torch) - ours)), encoding="utf-8")
    objects.append(work / "stubs.o")
    _run(compiler, "-O1", "-fPIC", "-w", "-fno-builtin", "-c", str(stubs), "-o", str(objects[-1]))
    _run(compiler, "-shared", "-pthread", "-o", str(work / LIBRARY), *map(str, objects), "-ldl")
    for path in objects:
        path.unlink()


def _wanted(torch: Torch) -> set[str]:
    """Every call into CUDA's libraries that torch makes, linked or by name, and Triton's into the driver."""
    linked = {name for name in _symbols(_libraries(torch), "--undefined-only", "-D") if _CALLS.fullmatch(name)}
    named = set()
    for path in _libraries(torch)[:2]:
        named |= {name.decode() for name in _BY_NAME.findall(path.read_bytes())}
    return linked | named | set(_DRIVER_CALLS.findall(_triton(torch)))


def _stubs(names: Iterable[str]) -> str:
    lines = [f"int {name}(void) {{ return {_FAILS.get(name[:4], 0)}; }}" for name in names]
    return "/* Generated: calls that succeed and do nothing. */\n" + "\n".join(lines) + "\n"


def _symbols(files: Sequence[Path], *options: str) -> list[str]:
    """Names from ``nm``, without their versions."""
    told = _run(_tool("nm"), "-P", *options, *map(str, files))
    return [line.split()[0].partition("@")[0] for line in told.splitlines() if line and not line.endswith(":")]


def _compiler() -> str:
    return _tool(os.environ.get("CC", ""), "cc", "gcc", "clang")


def _tool(*names: str) -> str:
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        missing = names[0] if len(names) == 1 else "C compiler"
        raise CannotMeasureError(
            f"the phantom GPU is compiled on first use, and there is no {missing} here; "
            "on Debian and Ubuntu: apt install gcc"
        )
    return found


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise CannotMeasureError(f"the phantom GPU does not compile ({command[0]}): {first}")
    return done.stdout
