"""The fingerprint holds what explains differences, of our own checkout only, and no secrets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import nooom
from nooom.profiler import fingerprint as module
from nooom.profiler.fingerprint import fingerprint


def test_it_names_versions_and_what_the_instrument_noted() -> None:
    made = fingerprint({"gpu": {"name": "G", "total_bytes": 1}, "sampling": {}, "driver": "580"}, cpu_threads=2)
    assert (made["gpu"], made["driver"], made["cpu_threads"]) == ("G", "580", 2)
    assert "sampling" not in made
    for library in ("torch", "transformers", "peft", "accelerate", "python"):
        assert made[library][0].isdecimal()


def test_environment_variables_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "hf_secret" not in json.dumps(fingerprint({}))


def test_an_installed_nooom_does_not_speak_for_the_repository_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    package = tmp_path / "site-packages" / "nooom" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    monkeypatch.setattr(nooom, "__file__", str(package))
    module._checkout.cache_clear()
    assert module._checkout() == {"commit": None, "dirty": None}
    module._checkout.cache_clear()
