"""Ugly input: exit 2, one line, the nearest valid name, and fast."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

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
        (["run", *SFT, "--device", "dryrun"], "not built yet"),
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


def write(folder: Path, content: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize(
    "change",
    [
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
    ],
)
def test_a_config_with_absurd_sizes_is_refused_before_anything_is_built(
    nooom: Any, tmp_path: Path, tiny_config: dict[str, Any], change: dict[str, Any]
) -> None:
    folder = write(tmp_path / "model", json.dumps({**tiny_config, **change}))
    completed = nooom("run", "--model", folder, "--workload", "sft", "--device", "cpu")
    assert completed.returncode == 2, completed.stderr
    assert len(completed.stderr.strip().splitlines()) == 1, completed.stderr
    assert next(iter(change)) in completed.stderr


@pytest.mark.parametrize("key", ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_config_with_a_missing_key_names_it(
    nooom: Any, tmp_path: Path, tiny_config: dict[str, Any], key: str
) -> None:
    del tiny_config[key]
    folder = write(tmp_path / "model", json.dumps(tiny_config))
    completed = nooom("run", "--model", folder, "--workload", "sft", "--device", "cpu")
    assert completed.returncode == 2
    assert key in completed.stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1, 2]", b"\x80\x04\x95pickle", b"[" * 200_000, b'{"hidden_size": NaN}', b'"x"'],
    ids=["empty", "cut", "list", "pickle", "deep", "nan", "text"],
)
def test_a_config_that_is_none_is_refused(nooom: Any, tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "model", content)
    completed = nooom("run", "--model", folder, "--workload", "sft", "--device", "cpu")
    assert completed.returncode == 2
    assert len(completed.stderr.strip().splitlines()) == 1, completed.stderr
    assert "config.json" in completed.stderr


def test_code_that_comes_with_a_model_is_never_run_unasked(
    nooom: Any, tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    folder = write(
        tmp_path / "model",
        json.dumps({**tiny_config, "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}),
    )
    witness = tmp_path / "witness"
    (folder / "evil.py").write_text(f"open({str(witness)!r}, 'w').write('ran')\n")
    flags = ["--workload", "inference", "--seq", "8", "--steps", "1", "--device", "cpu"]
    completed = nooom("run", "--model", folder, *flags)
    assert completed.returncode == 0, completed.stderr
    assert not witness.exists()


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
