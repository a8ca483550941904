"""A campaign's run as it is fired, on phantom GPUs: shards, several GPUs, a checkpoint, a budget, and what it says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nooom.formulas.gpus import GPUS

Command = Callable[..., subprocess.CompletedProcess[str]]


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "measurements.jsonl").read_text().splitlines()]


def test_a_suite_on_two_gpus_with_a_checkpoint_and_one_out_of_memory(
    phantom_nooom: Command, tiny_model: Path, tmp_path: Path
) -> None:
    """One run for all of it: each takes seconds."""
    suite, out = tmp_path / "mine.toml", tmp_path / "out"
    suite.write_text(
        f'[defaults]\non = "phantom"\nsteps = 1\nworkload = "sft"\nmodel = "{tiny_model}"\n'
        "[[case]]\nseq = [8, 16, 32]\n"
        "[[case]]\nbatch = 20000\nseq = 512\n"
        '[[case]]\nmodel = "HuggingFaceTB/SmolLM2-135M"\nworkload = "inference"\nseq = 8\npretrained = true\n'
    )
    flags = ["run", suite, "--device", "phantom", "--gpu", "h100-80gb", "--gpus", 2, "--out", out]
    done = phantom_nooom(*flags, "--budget", "9m", "--resume")
    assert done.returncode == 0, done.stderr
    assert "5 cases, about" in done.stderr
    assert "on h100-80gb (an estimate" in done.stderr
    assert "writing a checkpoint of HuggingFaceTB/SmolLM2-135M in bf16" in done.stderr
    found = {(one["case"]["workload"], one["case"]["batch"], one["case"]["seq"]): one for one in records(out)}
    assert [one["status"] for one in found.values()].count("oom") == 1
    assert found["sft", 20000, 512]["status"] == "oom"
    loaded = found["inference", 1, 8]
    assert (loaded["status"], loaded["weights"], loaded["case"]["pretrained"]) == ("ok", "random", True)
    uuids = {one["fingerprint"]["gpu_index"]: one["fingerprint"]["gpu_uuid"] for one in found.values()}
    assert set(uuids) == {0, 1}
    assert uuids[0] != uuids[1]
    assert {one["gpu"]["name"] for one in found.values()} == {GPUS["h100-80gb"].device_name}
    assert [path.name for path in out.iterdir()] == ["measurements.jsonl"]

    again = phantom_nooom(*flags, "--budget", "2s", "--resume", "--steps", 2)
    assert again.returncode == 0, again.stderr
    assert "budget spent: 5 cases left" in again.stderr  # none would be over in two seconds
