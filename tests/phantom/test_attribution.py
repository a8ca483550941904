"""``nooom run --attribute`` on a phantom: every byte at each phase's peak has a name, or the operation that asked."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nooom.profiler.tracer.attribution import CATEGORIES

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
HERE = ["--device", "phantom", "--gpu", "a100-80gb", "--gpu-memory", "1GiB", "--attribute", "--json"]

SUITE = """
[defaults]
model = "{model}"
steps = 1
batch = 2
seq = 512

[[case]]
workload = "inference"
new_tokens = 3

[[case]]
workload = "sft"

[[case]]
workload = "lora"
padding = 0.2
checkpointing = true
dtype = "fp32"
autocast = "bf16"

[[case]]
workload = "grpo"
group_size = 2
new_tokens = 3

[[case]]
workload = "sft"
batch = 64

[[case]]
workload = "sft"
allocator = "expandable_segments:True"
"""


def test_every_byte_has_a_name_where_memory_runs_out_too(phantom_nooom: Run, work: Path) -> None:
    (work / "suite.toml").write_text(SUITE.format(model=work))
    done = phantom_nooom("run", "suite.toml", *HERE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["measurements"]
    ran_out = found.pop(4)
    assert ran_out["status"] == "oom"
    assert sum(ran_out["error"]["components"].values()) > 400 * MIB  # of 512, less what the next request needs
    assert ran_out["error"]["tensors"][0]["category"] == "activations"
    for record in found:
        assert "attribution" not in record["fingerprint"]
        for phase in record["phases"]:
            _check(phase)
    inference, sft, lora, _, expandable = (_components(record) for record in found)
    assert inference["decode"]["kv_cache"] > 0
    assert lora["optimizer"]["optimizer"] > 0
    assert lora["optimizer"]["activations"] == 0  # the loss is gone, and with it the graph that held the embeddings
    assert sft["backward"]["logits"] > 0
    for components, record in ((sft, found[1]), (expandable, found[4])):
        weights = 2 * record["fingerprint"]["parameters"]
        assert components["optimizer"]["gradients"] == weights
        assert components["optimizer"]["parameters"] == pytest.approx(weights, rel=0.01)  # buffers besides


def _components(record: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {phase["name"]: phase["components"] for phase in record["phases"]}


def _check(phase: dict[str, Any]) -> None:
    """One phase's peak, taken apart."""
    assert tuple(phase["components"]) == CATEGORIES
    peak_bytes = sum(phase["components"].values())
    assert peak_bytes == phase["peak_allocated_bytes"]  # the tracer moves nothing
    assert phase["components"]["rounding"] >= 0
    hidden = [(block["what"], block["bytes"] * block["count"]) for block in phase["hidden"]]
    assert sum(size for _, size in hidden) == phase["components"]["workspace"]
    assert sum(size for what, size in hidden if what is None) < 0.005 * peak_bytes, phase["hidden"]


def test_a_block_of_ones_own_code_is_attributed_on_a_gpu_too(measure: Any) -> None:
    done = measure(
        "import sys, torch, nooom\n"
        "layer = torch.nn.Linear(1024, 1024, device='cuda')\n"
        "with nooom.measure(attribute=True) as block:\n"
        "    layer(torch.ones(256, 1024, device='cuda')).sum().backward()\n"
        "(phase,) = block.phases\n"
        "assert sum(phase.components.values()) == phase.peak_allocated_bytes\n"
        "names = ('parameters', 'gradients', 'workspace')\n"
        "print('components', *(phase.components[name] for name in names), file=sys.stderr)\n"
    )
    assert done.code == 0, done.said
    parameters, gradients, workspace = done.printed("components")
    assert parameters == 4 * (1024 * 1024 + 1024)
    assert gradients >= 4 * 1024 * 1024
    assert workspace >= 8_519_680  # cuBLAS's, which no tensor owns


@pytest.mark.parametrize("page", ["README.md", "docs/attribution.md"])
def test_the_pages_show_what_the_command_prints(printed: list[str], page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    block = text[text.index("                       load   forward") :].partition("```")[0]
    shown = [line.strip() for line in block.splitlines()[1:] if line.strip() not in ("", "...")]
    figures = [line for line in shown if not line.startswith("The largest tensors")]
    assert len(figures) >= 10
    assert [line for line in figures if line not in printed] == []


@pytest.fixture(scope="module")
def printed(cuda_python: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What README's command prints, line by line."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = [
        line for line in readme.splitlines() if line.startswith("nooom run --model") and "--attribute" in line
    ]
    done = subprocess.run(
        [cuda_python, "-m", *shlex.split(command)],
        cwd=tmp_path_factory.mktemp("readme"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()]
