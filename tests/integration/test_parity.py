"""The sft workload against what others would write: a plain HF Trainer, and ten lines under torch.profiler.

Each runs in a process of its own, because the profiler's figures count from the process's first tensor.  Weights are
fp32: without AVX-512, the CPU's bf16 products take a hundred times as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PEAKS = """
import json, os, sys, torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

def peak_of(work):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        work()
    balance = peak = 0
    for event in session.profiler.kineto_results.events():
        if event.name() == "[memory]":
            balance += event.nbytes()
            peak = max(peak, balance)
    return peak

# The process that imports does nothing else: each program has a fork of it to itself.
for name, program, settings in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(2)
        globals().update(settings)
        exec(program)
        print("PEAK", name, peak_of(work), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""

TRAINER = """
def work():
    rows = [{"input_ids": torch.randint(1, 8000, (seq,)), "attention_mask": torch.ones(seq, dtype=torch.long)}
            for _ in range(batch * accumulation * 3)]
    for row in rows:
        row["labels"] = row["input_ids"].clone()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    arguments = TrainingArguments(
        output_dir=name, use_cpu=True, max_steps=3, per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation, gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None, bf16=autocast,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
"""

TEN_LINES = """
def work():
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


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointing": {"checkpointing": True},
    "accumulation": {"accumulation": 2},
    "autocast": {"autocast": True, "seq": 16},
}
SUITE = """
[defaults]
model = "{model}"
workload = "sft"
dtype = "fp32"
batch = 4
seq = 128
[[case]]
[[case]]
checkpointing = true
[[case]]
grad_accumulation = 2
[[case]]
autocast = "bf16"
seq = 16
"""


@pytest.fixture(scope="module")
def theirs(small_config: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The peaks of others' programs."""
    common = {
        "config": small_config,
        "batch": 4,
        "seq": 128,
        "accumulation": 1,
        "checkpointing": False,
        "autocast": False,
    }
    programs = [(name, TRAINER, {**common, **settings}) for name, settings in SETTINGS.items()]
    completed = subprocess.run(
        [sys.executable, "-c", PEAKS, json.dumps([*programs, ("ten lines", TEN_LINES, common)])],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path_factory.mktemp("theirs"),
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    lines = [line.split(" ", 1)[1].rpartition(" ") for line in completed.stdout.splitlines() if line.startswith("PEAK")]
    return {name: int(peak) for name, _, peak in lines}


@pytest.fixture(scope="module")
def ours(nooom_in: Any, small_config: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The peaks of the same cases as nooom runs them."""
    folder = tmp_path_factory.mktemp("ours")
    (folder / "config.json").write_text(json.dumps(small_config))
    (folder / "suite.toml").write_text(SUITE.format(model=folder))
    completed = nooom_in(folder, "run", "suite.toml", "--device", "cpu", "--json")
    assert completed.returncode == 0, completed.stderr
    peaks = {}
    for name, measurement in zip(SETTINGS, json.loads(completed.stdout)["measurements"], strict=True):
        assert measurement["status"] == "ok", measurement["error"]
        everything = [*measurement["phases"], *measurement["first"]["phases"]]
        peaks[name] = max(phase["peak_allocated_bytes"] for phase in everything)
    return peaks


@pytest.mark.parametrize("name", SETTINGS)
def test_the_trainers_peak_is_ours(ours: dict[str, int], theirs: dict[str, int], name: str) -> None:
    assert ours[name] == pytest.approx(theirs[name], rel=0.005), (ours, theirs)


def test_ten_lines_of_ones_own_give_the_same_peak(ours: dict[str, int], theirs: dict[str, int]) -> None:
    assert ours["plain"] == pytest.approx(theirs["ten lines"], rel=0.005)
