"""The fingerprint holds what explains differences, of our own checkout only, and no secrets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
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


def test_torch_is_named_with_its_build() -> None:
    import torch

    assert fingerprint({})["torch"] == torch.__version__


def commit_in(folder: Path) -> str:
    """A repository of one empty commit; its hash."""
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(
        ["git", "-C", str(folder), *identity, "commit", "-q", "--allow-empty", "-m", str(folder)], check=True
    )
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nooom ran from a checkout there."""
    for name in ("nooom", "formulas"):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(nooom, "__file__", str(folder / "nooom" / "__init__.py"))


@pytest.fixture(autouse=True)
def _ask_git_anew() -> Iterator[None]:
    module._checkout.cache_clear()
    yield
    module._checkout.cache_clear()


def test_a_checkout_has_its_commit_and_says_whether_it_is_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout(tmp_path, monkeypatch)
    commit = commit_in(tmp_path)
    assert module._checkout() == {"commit": commit, "dirty": False}
    (tmp_path / "new").touch()  # a suite or results that lie beside the code change none of it
    module._checkout.cache_clear()
    assert module._checkout() == {"commit": commit, "dirty": False}
    subprocess.run(["git", "-C", str(tmp_path), "add", "new"], check=True)
    module._checkout.cache_clear()
    assert module._checkout() == {"commit": commit, "dirty": True}


def test_a_hooks_environment_does_not_lead_to_another_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout(tmp_path / "ours", monkeypatch)
    ours, other = commit_in(tmp_path / "ours"), commit_in(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert module._checkout()["commit"] == ours != other


def test_a_broken_checkout_inside_a_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_in(tmp_path)
    checkout(tmp_path / "ours", monkeypatch)
    (tmp_path / "ours" / ".git").mkdir()
    assert module._checkout() == {"commit": None, "dirty": None}


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path, monkeypatch)
    commit_in(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert module._checkout() == {"commit": None, "dirty": None}


def test_an_installed_nooom_does_not_speak_for_the_repository_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    package = tmp_path / "site-packages" / "nooom" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    monkeypatch.setattr(nooom, "__file__", str(package))
    assert module._checkout() == {"commit": None, "dirty": None}
