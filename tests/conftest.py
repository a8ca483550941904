"""What several tests share: a tiny model's config, and the command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.fixture
def small_config() -> dict[str, object]:
    """A llama of some million parameters, whose peak is more than rounding: what parity is tested with."""
    return dict(SMALL)


@pytest.fixture
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


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def nooom(tmp_path: Path) -> Command:
    """Run the command as a user would, from an empty folder: ``nooom("run", "--model", ...)``."""

    def run(*arguments: object, env: dict[str, str] | None = None, **rest: object) -> subprocess.CompletedProcess[str]:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-m", "nooom", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **{"cwd": work, "env": {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, **rest},  # type: ignore[call-overload]
        )

    return run
