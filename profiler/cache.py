"""Where what took long to make is kept for the next run."""

from __future__ import annotations

import os
from pathlib import Path


def cache(name: str) -> Path:
    """A folder of ours among the user's caches, which need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "nooom" / name
