"""What a measurement was made with: everything that could explain a difference, and nothing that is a secret."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nooom
from nooom.profiler import hardware

_DISTRIBUTIONS = ("transformers", "peft", "accelerate")
_GIT_LIMIT_S = 2
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""PyTorch reads the first of them that is there; the second is its older name."""


def fingerprint(
    notes: Mapping[str, Any],
    *,
    allocator: str = "",
    cpu_threads: int | None = None,
    checkout: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fingerprint of a measurement.

    Args:
        notes: what its instrument described: GPU, driver, CUDA, how it measured.
        allocator: the PyTorch allocator's settings that the case ran with.
        cpu_threads: of CPU kernels, where they were fixed.
        checkout: ``commit`` and ``dirty`` of the code that was measured; nooom's own where it is not given.
    """
    known = {name: value for name, value in notes.items() if name not in ("gpu", "sampling")}
    return {
        "nooom": nooom.__version__,
        "torch": hardware.torch_build().version,
        **{name: hardware.version(name) for name in _DISTRIBUTIONS},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": hardware.cpu_model(),
        "cpu_threads": cpu_threads,
        "gpu": (notes.get("gpu") or {}).get("name"),
        "allocator": allocator,
        **known,
        **(_checkout() if checkout is None else checkout),
    }


def allocator_settings() -> str:
    """What the environment tells PyTorch's allocator in this process."""
    return next((os.environ[name] for name in _ALLOCATOR_VARIABLES if name in os.environ), "")


@functools.cache
def checkout_around(folder: Path) -> dict[str, Any]:
    """Commit and dirty flag of the git checkout that a folder lies in, as they were when first asked; nulls outside.

    Dirty as ``git describe --dirty`` has it, by tracked files: what a program writes beside its code changes no code.
    """
    commit = _git(folder, "rev-parse", "HEAD", upwards=True)
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", upwards=True) if commit else None
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes)}


@functools.cache
def _checkout() -> dict[str, Any]:
    """Commit and dirty flag of the checkout that nooom runs from; nulls when it is installed from a wheel."""
    root = Path(nooom.__file__).resolve().parent.parent
    # Installed into an environment that lies inside somebody's repository, that repository's commit is not ours.
    if not (root / ".git").exists() or not (root / "formulas").is_dir():
        return {"commit": None, "dirty": None}
    commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes)}


def _git(root: Path, *arguments: str, upwards: bool = False) -> str | None:
    """What git says in a folder, or, ``upwards``, in the repository around it; None where there is none."""
    # A hook's GIT_DIR, or the repository around a broken .git, would answer for somebody else's code.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ceiling = {} if upwards else {"GIT_CEILING_DIRECTORIES": str(root.parent)}
    environment = {**inherited, "GIT_OPTIONAL_LOCKS": "0", **ceiling}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=True, env=environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
