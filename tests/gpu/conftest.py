"""GPU tests are skipped with a reason where there is no GPU; under NOOOM_REQUIRE_GPU=1 the skip is a failure."""

from __future__ import annotations

import os

import pytest

from nooom.profiler.hardware import find_gpus, looked_for


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if find_gpus():
        return
    reason = f"no GPU: {looked_for()}"
    if os.environ.get("NOOOM_REQUIRE_GPU") == "1":
        pytest.fail(f"NOOOM_REQUIRE_GPU=1, but {reason}")
    pytest.skip(reason)
