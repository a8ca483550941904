"""From what --model says to a config, with hostile files and no network."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks.models import zoo
from nooom.benchmarks.models.zoo import names, resolve
from nooom.formulas.errors import UsageError


def test_names_in_any_case_and_their_last_part() -> None:
    assert resolve("qwen/qwen2.5-7b").name == "Qwen/Qwen2.5-7B"
    assert resolve("SmolLM2-135M").name == "HuggingFaceTB/SmolLM2-135M"
    assert len(names()) == len({name.split("/")[-1].lower() for name in names()}) == 38


def test_a_change_to_what_was_given_out_does_not_reach_the_zoo() -> None:
    resolve("Qwen/Qwen2.5-7B").config["hidden_size"] = 1
    assert resolve("Qwen/Qwen2.5-7B").config["hidden_size"] == 3584


def test_a_directory_and_a_file_are_the_same_case(
    tiny_model: Path, tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere.json"
    other.write_text(json.dumps({**tiny_config, "_name_or_path": "x", "transformers_version": "5.0"}, indent=4))
    folder, file = resolve(str(tiny_model)), resolve(str(other))
    assert folder.key == file.key
    assert (folder.directory, file.directory) == (tiny_model, None)
    other.write_text(json.dumps({**tiny_config, "hidden_size": 128}))
    assert resolve(str(other)).key != folder.key


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not list"),
        (b'{"a": Infinity}', "Infinity is not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b" " * (5 << 20), "larger than 4 MiB"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        resolve(str(tmp_path))
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").mkdir()
    for name in ("loop", "empty", "odd", "nowhere", "x" * 5000):
        with pytest.raises(UsageError) as caught:
            resolve(str(tmp_path / name))
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch(mode=0)
    with pytest.raises(UsageError, match="Permission denied"):
        resolve(str(tmp_path))


@pytest.mark.alone
def test_a_hub_id_without_a_network_takes_no_time(
    monkeypatch: pytest.MonkeyPatch, patience: Callable[[], float]
) -> None:
    def hangs(*_: object, **__: object) -> None:
        threading.Event().wait()

    monkeypatch.setattr(socket, "create_connection", hangs)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"no network to the hub; did you mean Qwen/Qwen2\.5-7B"):
        resolve("Qwen/Qwen2.5-7B-Instrukt")
    assert time.monotonic() - began < 1.8 * patience()


def test_switched_off_the_hub_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(zoo, "_reachable", lambda endpoint: pytest.fail("tried"))
    with pytest.raises(UsageError, match="the hub is switched off"):
        resolve("someone/something")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"hidden_size": 1, "hidden_size": 2}', "key 'hidden_size' stands there twice"),
        (b'{"rope_theta": NaN}', "NaN is not JSON"),
        (b'{"rope_theta": 1e999}', "1e999 is too large"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "nested more than 64 deep"),
        (b"null", "not NoneType"),
    ],
)
def test_a_file_that_two_readers_would_read_differently(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        resolve(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UsageError, match="not a file"):
        resolve(str(tmp_path))


def test_a_loop_of_links_is_named_and_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "loop").symlink_to("loop")
    (tmp_path / "config.json").symlink_to("config.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(zoo, "_from_hub", lambda model: pytest.fail("taken for a hub id"))
    for name in ("org/loop", "."):
        with pytest.raises(UsageError, match="symbolic links"):
            resolve(name)


def test_a_folder_that_may_not_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", denied)
    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(UsageError, match="Permission denied"):
        resolve(str(tmp_path / "model"))


def test_nothing_inside_what_was_given_out_reaches_the_zoo() -> None:
    resolve("Qwen/Qwen3-30B-A3B").config["mlp_only_layers"].append(1)
    assert resolve("Qwen/Qwen3-30B-A3B").config["mlp_only_layers"] == []


def test_zero_does_not_switch_the_hub_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setattr(zoo, "_reachable", lambda endpoint: False)
    with pytest.raises(UsageError, match="no network to the hub"):
        resolve("someone/something")
