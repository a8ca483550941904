"""From what ``--model`` says to a config: a zoo name, a directory or file, or a hub id when there is a network.

Config files come from outside: bounded in size, parsed as plain JSON, never executed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nooom.formulas.errors import UsageError, nearest

_CONFIGS = Path(__file__).with_name("configs.json")
_MAX_CONFIG_BYTES = 4 << 20
_REACH_LIMIT_S = 1.0
_NOT_IDENTITY = ("_name_or_path", "transformers_version")


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as the command knows it: its name, its Hugging Face config, and where its weights may lie."""

    name: str
    config: dict[str, Any]
    parameters: int | None = None
    """As published; None outside the zoo."""
    directory: Path | None = None
    """A local directory, which may hold a checkpoint."""
    key: str | None = None
    """Stands for the name in a case's identity where the name is a path or may change; None for the zoo's names."""


@functools.cache
def _zoo() -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = json.loads(_CONFIGS.read_text(encoding="utf-8"))
    return facts


def names() -> list[str]:
    """The zoo's models."""
    return list(_zoo())


def resolve(model: str) -> Model:
    """The model of that name.

    Args:
        model: a zoo name (its last part is enough where only one has it), a directory with a ``config.json`` or a
            JSON file, or a hub id ``org/name``.

    Raises:
        UsageError: none of these, or a config that can't be read; the message has the nearest zoo names.
    """
    by_name = {name.lower(): name for name in names()} | {name.lower().split("/")[-1]: name for name in names()}
    if (known := by_name.get(model.lower())) is not None:
        fact = _zoo()[known]
        return Model(name=known, config=dict(fact["config"]), parameters=fact["parameters"])
    path = Path(model).expanduser()
    if _exists(path):
        return _local(model, path)
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise UsageError(f"--model {model!r} is no zoo model and no such path; {_near(model)}")
    return _from_hub(model)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long for the file system, a loop of links
        return False


def _local(model: str, path: Path) -> Model:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"--model {model}: no config.json in it")
    config = read_config(file)
    return Model(name=model, config=config, directory=path.resolve() if path.is_dir() else None, key=_key(config))


def read_config(file: Path) -> dict[str, Any]:
    """A config from outside.  Raises UsageError, naming the file, for anything but a JSON object of sane size."""
    try:
        if file.stat().st_size > _MAX_CONFIG_BYTES:
            raise UsageError(f"{file}: larger than {_MAX_CONFIG_BYTES >> 20} MiB, which is no model's config")
        content = json.loads(file.read_bytes().decode("utf-8"), parse_constant=_no_constants)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not JSON: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file}: a config is a JSON object, not {type(content).__name__}")
    return content


def _no_constants(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _key(config: dict[str, Any]) -> str:
    identity = {key: value for key, value in config.items() if key not in _NOT_IDENTITY}
    return "config:" + hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _near(model: str) -> str:
    # Compared without the organisation too, or every Qwen would be nearer to a mistyped Qwen than its own name.
    last = {name.split("/")[-1]: name for name in names()}
    hint = nearest(model, names())
    if hint.startswith("valid"):
        hint = nearest(model.rsplit("/", maxsplit=1)[-1], last)
        for short, name in last.items():
            hint = hint.replace(f" {short}?", f" {name}?").replace(f" {short} or", f" {name} or")
    return hint


def _from_hub(model: str) -> Model:
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(model, "config.json")
        if isinstance(cached, str):
            file = Path(cached)
        elif os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE"):
            raise UsageError(f"--model {model!r} is not in the zoo, and the hub is switched off; {_near(model)}")
        elif not _reachable(constants.ENDPOINT):
            raise UsageError(f"--model {model!r} is not in the zoo, and there is no network to the hub; {_near(model)}")
        else:
            file = Path(hf_hub_download(model, "config.json"))
    except UsageError:
        raise
    except Exception as error:  # the hub's client has dozens: no such model, gated, time-outs, a bad id
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"--model {model!r}: not in the zoo, and the hub says: {reason}; {_near(model)}") from error
    config = read_config(file)
    return Model(name=model, config=config, directory=file.parent, key=_key(config))


def _reachable(endpoint: str) -> bool:
    """Whether the hub answers within a second: looking its name up may hang, which no socket option bounds."""
    url = urlsplit(endpoint)
    reached: list[bool] = []

    def connect() -> None:
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
            with socket.create_connection((url.hostname or "", port), timeout=_REACH_LIMIT_S):
                reached.append(True)
        except OSError:
            pass

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_REACH_LIMIT_S)
    return bool(reached)
