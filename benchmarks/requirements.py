"""What the command needs that a machine with a GPU and a Python of its own may lack, said before anything is imported.

Nothing but the standard library may be imported here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

MODULES = {
    "typer": "typer",
    "rich": "rich",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "numpy": "numpy",
    "pandas": "pandas",
    "huggingface_hub": "huggingface-hub",
    "torch": "torch",
    "transformers": "transformers",
    "peft": "peft",
    "accelerate": "accelerate",
}
"""The distributions that bring the modules without which nothing is measured."""


def missing(find: Callable[[str], Any] = importlib.util.find_spec) -> str | None:
    """One line about the distributions that are missing; None where all are there."""
    absent = [distribution for module, distribution in MODULES.items() if find(module) is None]
    if not absent:
        return None
    return (
        f"this Python lacks {', '.join(absent)}: install them, or carry them as wheels and put their folder on "
        "PYTHONPATH (docs/campaign.md)"
    )
