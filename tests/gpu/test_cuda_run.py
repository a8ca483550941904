"""On a real GPU: every workload gives allocator statistics and NVML's figure per phase."""

from __future__ import annotations

import json
from typing import Any

import pytest

FLAGS = {
    "inference": ["--batch", 2, "--seq", 64, "--new-tokens", 4],
    "sft": ["--batch", 2, "--seq", 64],
    "lora": ["--batch", 2, "--seq", 64, "--checkpointing"],
    "grpo": ["--batch", 4, "--group-size", 2, "--seq", 16, "--new-tokens", 8],
}


@pytest.mark.gpu
@pytest.mark.parametrize("workload", FLAGS)
def test_each_workload_on_the_gpu(nooom: Any, workload: str) -> None:
    flags = ["--model", "HuggingFaceTB/SmolLM2-135M", "--workload", workload, *FLAGS[workload]]
    completed = nooom("run", *flags, "--device", "cuda", "--json")
    assert completed.returncode == 0, completed.stderr
    (measurement,) = json.loads(completed.stdout)["measurements"]
    assert (measurement["status"], measurement["retries"]) == ("ok", 0)
    assert measurement["gpu"]["total_bytes"] > 1 << 30
    for phase in measurement["phases"]:
        assert phase["peak_reserved_bytes"] >= phase["peak_allocated_bytes"] > 200_000_000
        assert phase["peak_allocated_bytes"] >= phase["peak_requested_bytes"]
        # One read comes at the phase's end, so what lives then is in it; null where the driver shows no process.
        assert phase["nvml_peak_bytes"] is None or phase["nvml_peak_bytes"] >= phase["end_allocated_bytes"]
