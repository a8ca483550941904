"""What several tests share: a tiny model's config, and the command in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

if sys.platform != "win32":
    import fcntl

ROOT = Path(__file__).resolve().parent.parent

# As cases' processes have it: spinning threads of one test's processes would starve another's.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 8000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def small_config() -> dict[str, object]:
    """A llama of some million parameters, whose peak is more than rounding: what parity is tested with."""
    return dict(SMALL)


@pytest.fixture(scope="module")
def tiny_config() -> dict[str, object]:
    """A llama of 137 thousand parameters: every code path, no waiting."""
    return dict(TINY)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A directory with the tiny model's config.json."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


@pytest.fixture(scope="module")
def shared_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for a module's shared runs: a run imports torch, so tests of one case's figures share one."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def nooom_in() -> Command:
    """Run the command as a user would, from a folder: ``nooom_in(folder, "run", "--model", ...)``."""

    def run(
        folder: Path, *arguments: object, env: dict[str, str] | None = None, **rest: object
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "nooom", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **{"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, **rest},  # type: ignore[call-overload]
        )

    return run


@pytest.fixture
def nooom(nooom_in: Command, tmp_path: Path) -> Command:
    """The same from an empty folder: ``nooom("run", "--model", ...)``."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return functools.partial(nooom_in, work)


@pytest.fixture(scope="session")
def patience() -> Callable[[], float]:
    """What a limit on time is multiplied by: how much more there is to run just now than there are cores, or 1."""

    def times() -> float:
        try:
            running = int(Path("/proc/loadavg").read_text(encoding="utf-8").split()[3].partition("/")[0])
        except OSError:  # no Linux
            return 1.0
        return max(1.0, running / (os.cpu_count() or 1))

    return times


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: measures time, so no other test of this checkout runs meanwhile")


_INSIDE_A_TEST = "NOOOM_INSIDE_A_TEST"
_IS_INSIDE = _INSIDE_A_TEST in os.environ


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """With several processes: a test that is marked ``alone`` waits for the others' tests, and they for it."""
    if sys.platform == "win32" or _IS_INSIDE:  # a test that runs pytest has its turn already
        return (yield)
    os.environ[_INSIDE_A_TEST] = "1"
    folder = ROOT / ".pytest_cache"
    folder.mkdir(exist_ok=True)
    how = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with open(folder / "queue", "w", encoding="utf-8") as queue, open(folder / "turn", "w", encoding="utf-8") as turn:
        fcntl.flock(queue, fcntl.LOCK_EX)  # who waits to be alone keeps the next ones waiting too
        fcntl.flock(turn, how)
        fcntl.flock(queue, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(turn, fcntl.LOCK_UN)  # also where a forked process still holds the file
