"""``nooom run --attribute`` on the CPU: every byte at each phase's peak is a tensor's, for every workload."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

SUITE = """
[defaults]
model = "{model}"
steps = 1
batch = 2
seq = 64

[[case]]
workload = "inference"
new_tokens = 3

[[case]]
workload = "sft"

[[case]]
workload = "lora"
checkpointing = true
padding = 0.2

[[case]]
workload = "grpo"
group_size = 2
new_tokens = 3
"""


def test_every_byte_on_the_cpu_is_a_tensors(
    nooom: Callable[..., subprocess.CompletedProcess[str]], tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "suite.toml").write_text(SUITE.format(model=tiny_model))
    done = nooom("run", str(tmp_path / "suite.toml"), "--device", "cpu", "--attribute", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["measurements"]
    assert len(found) == 4
    for record in found:
        assert "attribution" not in record["fingerprint"]
        for phase in record["phases"]:
            peak_bytes = sum(phase["components"].values())
            assert peak_bytes == phase["peak_allocated_bytes"], (record["case"]["workload"], phase["name"])
            assert phase["components"]["rounding"] == 0
            unknown = [block for block in phase["hidden"] if block["what"] is None]
            assert sum(block["bytes"] * block["count"] for block in unknown) <= 0.001 * peak_bytes, unknown
