"""The sft workload against what others would write: a plain HF Trainer, and ten lines under torch.profiler.

Each runs in a process of its own, because the profiler's figures count from the process's first tensor.  Weights are
fp32: without AVX-512, the CPU's bf16 products take a hundred times as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

PEAK = """
def peak_of(work):
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        work()
    balance = peak = 0
    for event in session.profiler.kineto_results.events():
        if event.name() == "[memory]":
            balance += event.nbytes()
            peak = max(peak, balance)
    print("PEAK", peak)
"""

TRAINER = """
def work():
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
    rows = [{"input_ids": torch.randint(1, 8000, (seq,)), "attention_mask": torch.ones(seq, dtype=torch.long)}
            for _ in range(batch * accumulation * 3)]
    for row in rows:
        row["labels"] = row["input_ids"].clone()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    arguments = TrainingArguments(
        output_dir=sys.argv[2], use_cpu=True, max_steps=3, per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation, gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None, bf16=autocast,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
"""

TEN_LINES = """
def work():
    from transformers import AutoConfig, AutoModelForCausalLM
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        ids = torch.randint(1, 8000, (batch, seq))
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""


def run_alone(program: str, settings: dict[str, Any], folder: Path) -> int:
    """The peak that a program of its own prints."""
    head = "import json, sys, torch\ntorch.set_num_threads(2)\nglobals().update(json.loads(sys.argv[1]))\n"
    completed = subprocess.run(
        [sys.executable, "-c", head + PEAK + program + "\npeak_of(work)\n", json.dumps(settings), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    (line,) = [line for line in completed.stdout.splitlines() if line.startswith("PEAK")]
    return int(line.split()[1])


def measured(nooom: Any, folder: Path, config: dict[str, Any], *flags: object) -> int:
    (folder / "config.json").write_text(json.dumps(config))
    completed = nooom(
        "run", "--model", folder, "--workload", "sft", "--dtype", "fp32", *flags, "--device", "cpu", "--json"
    )
    assert completed.returncode == 0, completed.stderr
    (measurement,) = json.loads(completed.stdout)["measurements"]
    assert measurement["status"] == "ok", measurement["error"]
    everything = [*measurement["phases"], *measurement["first"]["phases"]]
    return max(phase["peak_allocated_bytes"] for phase in everything)


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ((), {}),
        (("--checkpointing",), {"checkpointing": True}),
        (("--grad-accumulation", 2), {"accumulation": 2}),
        (("--autocast", "bf16", "--seq", 32), {"autocast": True, "seq": 32}),
    ],
    ids=["plain", "checkpointing", "accumulation", "autocast"],
)
def test_the_trainers_peak_is_ours(
    nooom: Any, tmp_path: Path, small_config: dict[str, Any], flags: Any, settings: dict[str, Any]
) -> None:
    shared = {
        "config": small_config,
        "batch": 4,
        "seq": 128,
        "accumulation": 1,
        "checkpointing": False,
        "autocast": False,
    }
    theirs = run_alone(TRAINER, {**shared, **settings}, tmp_path)
    ours = measured(nooom, tmp_path, small_config, "--batch", 4, "--seq", 128, *flags)
    assert ours == pytest.approx(theirs, rel=0.005), (ours, theirs)


def test_ten_lines_of_ones_own_give_the_same_peak(nooom: Any, tmp_path: Path, small_config: dict[str, Any]) -> None:
    theirs = run_alone(TEN_LINES, {"config": small_config, "batch": 4, "seq": 128}, tmp_path)
    assert measured(nooom, tmp_path, small_config, "--batch", 4, "--seq", 128) == pytest.approx(theirs, rel=0.005)
