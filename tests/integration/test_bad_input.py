"""Ugly input: exit 2, one line, the nearest valid name, and fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

SMOL = "HuggingFaceTB/SmolLM2-135M"
SFT = ["--model", SMOL, "--workload", "sft"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--model", "Qwen/Qwen2.5-7"], "Qwen/Qwen2.5-7B"),
        (["run", "--model", "SmolLM2-135", "--workload", "sft"], "HuggingFaceTB/SmolLM2-135M"),
        (["run", "--model", "someone/else", "--workload", "sft"], "network"),
        (["run", *SFT, "--bacth", "2"], "--batch"),
        (["run", *SFT, "--batch", "-1"], "--batch must lie between 1 and"),
        (["run", *SFT, "--batch", "two"], "--batch must be an integer, not 'two'"),
        (["run", *SFT, "--workload", "stf"], "sft"),
        (["run", *SFT, "--dtype", "bf61"], "did you mean bf16"),
        (["run", *SFT, "--gpu", "h100-80g"], "h100-80gb"),
        (["run", *SFT, "--device", "gpu"], "cpu"),
        (["run", *SFT, "--device", "dryrun"], "--device dryrun plays a GPU: add --gpu NAME"),
        (["run", *SFT, "--device", "dryrun", "--gpu", "t4-16gb", "--gpus", "2"], "--gpus is for cuda and phantom"),
        (["run", *SFT, "--device", "dryrun", "--gpu", "t4-16gb", "--attention", "flash_attention_2"], "sdpa-flash"),
        (["run", *SFT, "--device", "dryrun", "--gpu", "t4-16gb", "--attention", "sdpa-cudnn"], "hardware's library"),
        (["run", *SFT, "--device", "dryrun", "--gpu", "t4-16gb", "--pretrained"], "not built yet for the dry run"),
        (
            ["measure", "--device", "dryrun", "--gpu", "t4-16gb", "--", "true"],
            "for a command there is --device phantom",
        ),
        (["predict", *SFT, "--by", "dryrun"], "--by dryrun plays a GPU: add --gpu NAME"),
        (["run", *SFT, "--device", "phantom"], "add --gpu NAME"),
        (["run", *SFT, "--device", "cpu", "--gpu", "t4-16gb"], "phantom and dryrun play"),
        (["run", *SFT, "--gpu-memory", "9GiB"], "add --gpu NAME"),
        (["run", *SFT, "--compile"], "torch.compile is not built yet"),
        (["run", "--model", SMOL, "--workload", "lora", "--quantization", "nf4"], "nf4 is not built yet; built: none"),
        (["run", *SFT, "--optimizer", "adamw-8bit"], "adamw-8bit is not built yet"),
        (["run", *SFT, "--new-tokens", "3"], "does not apply to sft"),
        (["run", *SFT, "--device", "cpu", "--attention", "sdpa-cudnn"], "no CPU kernel"),
        (["run", *SFT, "--device", "cpu", "--allocator", "expandable_segments:True"], "means nothing on the CPU"),
        (["run", *SFT, "--device", "cpu", "--autocast", "fp16"], "needs a GPU"),
        (["run", *SFT, "--pretrained", "--device", "cpu"], "no *.safetensors"),
        (["run", *SFT, "--shard", "4/3"], "--shard must read K/N"),
        (["run", *SFT, "--budget", "soon"], "--budget must be a time"),
        (["run", "--model", SMOL, "--workload", "grpo", "--batch", "12"], "is not a multiple of --group-size 8"),
        (["run", "--model", "openai-community/gpt2", "--workload", "sft"], "1024 learned positions"),
        (["run", "dmeo"], "did you mean demo"),
        (["run"], "--model is missing"),
        (["rnu"], "did you mean run"),
        (["run", "--modle", "x"], "--model"),
    ],
)
def test_it_is_refused_in_one_line_within_two_seconds(
    nooom: Any, patience: Any, arguments: list[str], says: str
) -> None:
    if "--workload" not in arguments and "--model" in arguments:
        arguments = [*arguments, "--workload", "sft"]
    for _ in range(3):  # once, where nothing else runs
        began = time.perf_counter()
        completed = nooom(*arguments)
        taken_s = time.perf_counter() - began
        if taken_s < 2 * patience():
            break
    assert taken_s < 2 * patience()
    assert completed.returncode == 2, completed.stderr
    assert completed.stdout == ""
    assert says in completed.stderr
    assert len(completed.stderr.strip().splitlines()) == 1, completed.stderr


ABSURD: list[dict[str, Any]] = [
    {"hidden_size": 10**12},
    {"hidden_size": -64},
    {"hidden_size": "64"},
    {"hidden_size": None},
    {"num_hidden_layers": 10**9},
    {"num_attention_heads": 0},
    {"vocab_size": 10**15},
    {"vocab_size": 1.5},
    {"vocab_size": True},
    {"model_type": "lama"},
    {"model_type": ["llama"]},
    {"num_attention_heads": 7},
]
MISSING = ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
NONE = {
    "empty": b"",
    "cut": b"{",
    "list": b"[1, 2]",
    "pickle": b"\x80\x04\x95pickle",
    "deep": b"[" * 200_000,
    "nan": b'{"hidden_size": NaN}',
    "text": b'"x"',
}

# The command line's own entry, once for each model, in one process: starting one takes longer than refusing a config.
EACH = """
import contextlib, io, json, sys
from nooom.benchmarks.cli import main
told = {}
for name in sys.argv[1:]:
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            main(["run", "--model", f"./{name}", "--workload", "sft", "--device", "cpu"])
            code = None
        except SystemExit as ended:
            code = ended.code
    told[name] = [code, out.getvalue(), said.getvalue()]
print(json.dumps(told))
"""


def write(folder: Path, content: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.fixture(scope="module")
def refused(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The exit code, stdout and stderr of ``nooom run`` on each of these configs."""
    folder = tmp_path_factory.mktemp("models")
    contents: dict[str, str | bytes] = {
        f"absurd-{number}": json.dumps({**tiny_config, **change}) for number, change in enumerate(ABSURD)
    }
    for key in MISSING:
        contents[f"missing-{key}"] = json.dumps({name: value for name, value in tiny_config.items() if name != key})
    contents |= NONE
    for name, content in contents.items():
        write(folder / name, content)
    completed = subprocess.run(
        [sys.executable, "-c", EACH, *contents],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return dict(json.loads(completed.stdout))


def line(refused: dict[str, list[Any]], name: str) -> str:
    """What was said of that model: one line, with exit 2."""
    code, out, said = refused[name]
    assert (code, out) == (2, ""), said
    assert len(said.strip().splitlines()) == 1, said
    return str(said)


@pytest.mark.parametrize(("number", "change"), enumerate(ABSURD))
def test_a_config_with_absurd_sizes_is_refused_before_anything_is_built(
    refused: dict[str, list[Any]], number: int, change: dict[str, Any]
) -> None:
    assert next(iter(change)) in line(refused, f"absurd-{number}")


@pytest.mark.parametrize("key", MISSING)
def test_a_config_with_a_missing_key_names_it(refused: dict[str, list[Any]], key: str) -> None:
    assert key in line(refused, f"missing-{key}").replace(f"missing-{key}", "")


@pytest.mark.parametrize("name", NONE)
def test_a_config_that_is_none_is_refused(refused: dict[str, list[Any]], name: str) -> None:
    assert "config.json" in line(refused, name)


def test_cuda_without_a_gpu_says_what_was_looked_for(nooom: Any) -> None:
    completed = nooom("run", *SFT, "--device", "cuda")
    if "no GPU to measure on" not in completed.stderr:
        pytest.skip("there is a GPU here")
    assert completed.returncode == 3
    assert "NVML" in completed.stderr
    assert "/dev/nvidia" in completed.stderr
    assert len(completed.stderr.strip().splitlines()) == 1


def test_gpus_that_are_hidden_are_said_to_be(nooom: Any) -> None:
    completed = nooom("run", *SFT, "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""})
    assert completed.returncode == 3
    assert "CUDA_VISIBLE_DEVICES hides every GPU" in completed.stderr


@pytest.mark.alone
def test_help_is_quick_and_has_an_example(nooom: Any, patience: Any) -> None:
    nooom("--help")

    def seconds() -> float:
        began = time.perf_counter()
        assert nooom("--help").returncode == 0
        return time.perf_counter() - began

    assert any(seconds() < 0.5 * patience() for _ in range(8))
    shown = nooom("run", "--help", env={"COLUMNS": "200"}).stdout
    assert "Example: nooom run" in shown
    for flag in ("--logprob-micro-batch", "--no-checkpointing", "--lora-targets"):
        assert flag in shown
