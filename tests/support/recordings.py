"""PyTorch memory snapshots of other people's programs on real GPUs, without their stack frames.

They aren't ours to publish: NOOOM_RECORDINGS names a folder that has them.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

RECORDINGS = Path(os.environ.get("NOOOM_RECORDINGS") or "/no such folder")

needed = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason="no recordings of real allocators: NOOOM_RECORDINGS names no folder"
)


@functools.cache
def recorded(name: str) -> dict[str, Any]:
    """A recording: ``events`` of action, size, address and stream, and ``segments``, the memory's map at the end."""
    with gzip.open(RECORDINGS / f"{name}.json.gz") as file:
        return dict(json.load(file))


def names() -> list[str]:
    """All that the folder has; none where there is no folder."""
    manifest = RECORDINGS / "MANIFEST.json"
    return [one["id"] for one in json.loads(manifest.read_text())] if manifest.is_file() else []
