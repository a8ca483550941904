"""How a command that counts or asks something writes its file of ``results/claims``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nooom.formulas.errors import UsageError


def write(document: Callable[[], Mapping[str, Any]], arguments: list[str]) -> None:
    """Write a document to the one path given; raises UsageError unless there is one."""
    if len(arguments) != 1:
        raise UsageError("one argument is right: the file to write")
    path = Path(arguments[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(), indent=1) + "\n", encoding="utf-8")
