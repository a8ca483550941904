"""From what ``--model`` says to a config: a zoo name, a directory or file, or a hub id when there is a network.

Config files come from outside: bounded in size, parsed as plain JSON, never executed.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import socket
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nooom.formulas.case import Case, config_key
from nooom.formulas.errors import UsageError, nearest
from nooom.formulas.shape import ModelShape

_CONFIGS = Path(__file__).with_name("configs.json")
_MAX_CONFIG_BYTES = 4 << 20
_MAX_DEPTH = 64
"""Far deeper than any config, and shallow enough that nothing that walks one runs out of stack."""
_REACH_LIMIT_S = 1.0


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
    if (known := _by_name().get(model.lower())) is not None:
        fact = _zoo()[known]
        return Model(name=known, config=copy.deepcopy(fact["config"]), parameters=fact["parameters"])
    try:
        path = Path(model).expanduser()
    except RuntimeError as error:  # ~someone who has no home here
        raise UsageError(f"--model {model!r}: no such path: {error}") from error
    if _exists(path):
        return _local(model, path)
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise UsageError(f"--model {model!r} is no zoo model and no such path; {_near(model)}")
    return _from_hub(model)


def resolve_case(case: Case) -> tuple[Model, ModelShape]:
    """A case's model and its sizes.

    Raises:
        UsageError: as :func:`resolve`; a config that is no decoder-only model's, or a quantized checkpoint's, whose
            weights are not what its sizes say; a case longer than the model's table of positions.
    """
    model = resolve(case.model)
    if model.config.get("quantization_config"):
        raise UsageError(f"{case.model} is a quantized checkpoint (quantization_config), which is not built yet")
    shape = ModelShape.from_config(model.config, where=model.name)
    length = case.seq + (case.new_tokens or 0)
    if shape.learned_positions and shape.max_position is not None and length > shape.max_position:
        raise UsageError(f"{case.model} has {shape.max_position} learned positions; the case needs {length}")
    return model, shape


@functools.cache
def _by_name() -> dict[str, str]:
    """Zoo names by what may stand for them, in lower case: themselves, and their last parts where only one has it."""
    last = [name.lower().split("/")[-1] for name in names()]
    short = {part: name for part, name in zip(last, names(), strict=True) if last.count(part) == 1}
    return short | {name.lower(): name for name in names()}


def _exists(path: Path) -> bool:
    """Whether something stands there, readable or not: a link that leads nowhere is a path too, and no hub id."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except (OSError, ValueError):  # a name too long for the file system, a null byte
        return False
    return True


def _local(model: str, path: Path) -> Model:
    try:
        folder = stat.S_ISDIR(path.stat().st_mode)
        file = path / "config.json" if folder else path
        if folder and not os.path.lexists(file):
            raise UsageError(f"--model {model}: no config.json in it")
        directory = path.resolve() if folder else None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    config = read_config(file)
    return Model(name=model, config=config, directory=directory, key=config_key(config))


def read_config(file: Path) -> dict[str, Any]:
    """A config from outside.  Raises UsageError, naming the file, for anything but a JSON object of sane size."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise UsageError(f"{file}: not a file")  # a directory; or a pipe, which would be waited for
        with file.open("rb") as stream:
            raw = stream.read(_MAX_CONFIG_BYTES + 1)
        if len(raw) > _MAX_CONFIG_BYTES:
            raise UsageError(f"{file}: larger than {_MAX_CONFIG_BYTES >> 20} MiB, which is no model's config")
        content = json.loads(
            raw.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique
        )
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not JSON: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file}: a config is a JSON object, not {type(content).__name__}")
    if _is_deep(content):
        raise UsageError(f"{file}: not JSON of a config: nested more than {_MAX_DEPTH} deep")
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys say one thing each: which of two would count depends on who reads it."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:60]!r} stands there twice")
    return found


def _is_deep(content: Any) -> bool:
    level = [content]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return bool(level)


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
        elif _switched_off():
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
    return Model(name=model, config=config, directory=file.parent, key=config_key(config))


def _switched_off() -> bool:
    """As the hub's client reads it, but now: it reads the variables once, when it is imported."""
    words = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(word.upper() in ("1", "ON", "YES", "TRUE") for word in words)


def _reachable(endpoint: str) -> bool:
    """Whether the hub answers within a second: looking its name up may hang, which no socket option bounds."""
    url = urlsplit(endpoint)
    reached: list[bool] = []

    def connect() -> None:
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
            socket.create_connection((url.hostname or "", port), timeout=_REACH_LIMIT_S).close()
            reached.append(True)
        except OSError:
            pass

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_REACH_LIMIT_S)
    return bool(reached)
