"""Checkpoints of zoo models with random weights, written before a run whose cases load some with ``from_pretrained``.

``python -m nooom.benchmarks.checkpoints MODEL DTYPE FOLDER`` writes one that stays.  A run's own lie in a folder for
temporary files, go when it ends, and go when the next one starts where it was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nooom.benchmarks.models.zoo import Model, resolve
from nooom.benchmarks.runner import Planned, is_written_first
from nooom.formulas.config import language_part
from nooom.formulas.errors import CannotMeasureError, NooomError, UsageError

_PREFIX = "nooom-checkpoints-"
_LOCK = "in-use"
_LIMIT_S = 600.0
_WRITE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from nooom.benchmarks.workloads.checkpoint import main; main(*sys.argv[1:])"
)
DTYPES = ("bf16", "fp16", "fp32")


class Checkpoints:
    """A run's own checkpoints: each is written when the first case that loads it is about to begin."""

    def __init__(self, on_write: Callable[[str], None] = lambda what: None) -> None:
        self._on_write = on_write
        self._lock = threading.Lock()  # cases of several GPUs may want the same one
        self._stack = contextlib.ExitStack()
        self._folder: Path | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prepare(self, item: Planned) -> Planned:
        """The case with its checkpoint on disk, where it needs one.

        Raises:
            CannotMeasureError: it can't be written, for want of room say.
        """
        if not is_written_first(item):
            return item
        with self._lock:
            if self._folder is None:
                self._folder = self._stack.enter_context(_own_folder(Path(tempfile.gettempdir())))
            target = self._folder / f"{item.model.name.replace('/', '--')}-{item.case.dtype}"
            if not target.is_dir():
                self._on_write(f"{item.model.name} in {item.case.dtype}")
                write(item.model, item.case.dtype, target)
        return dataclasses.replace(item, model=dataclasses.replace(item.model, directory=target))


def write(model: Model, dtype: str, folder: Path) -> None:
    """Write a checkpoint of a model with random weights, by a process of its own: it needs torch.

    Raises:
        CannotMeasureError: it could not be written; the message has the last line that was said.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    job = json.dumps({"config": language_part(model.config), "dtype": dtype, "folder": str(partial)})
    # The GPU is the cases' alone.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-P", "-c", _WRITE, json.dumps(sys.path), job]
    try:
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
        partial.rename(folder)
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        raise CannotMeasureError(f"no checkpoint of {model.name} in {folder.parent}: {said[:300]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotMeasureError(f"no checkpoint of {model.name} in {folder.parent}: {error}") from error


@contextlib.contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """A folder of this run's own; those of runs that were killed go first."""
    for left in parent.glob(f"{_PREFIX}*"):
        with _held(left) as free:
            if free:
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with _held(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Holds a folder's lock, which its run holds for as long as it lives; False where somebody has it, or may have."""
    try:
        import fcntl

        with (folder / _LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
    except (ImportError, OSError):
        yield False


def main(arguments: Sequence[str]) -> None:
    """Raises UsageError unless given a model, a dtype and a folder that isn't there yet."""
    if len(arguments) != 3 or arguments[1] not in DTYPES:
        raise UsageError(f"three arguments are right: MODEL, one of {', '.join(DTYPES)}, FOLDER")
    model, folder = resolve(arguments[0]), Path(arguments[2])
    if folder.exists():
        raise UsageError(f"{folder} is there already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    write(model, arguments[1], folder)
    print(folder)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except NooomError as problem:
        sys.exit(f"nooom: {problem}")
