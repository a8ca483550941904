"""``nooom.TrainerCallback`` in real Trainers on the CPU: the phases of our own workloads, and nothing said wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

import nooom
from nooom.benchmarks.journal import read
from nooom.benchmarks.workloads.run import run as run_workload
from nooom.formulas.case import Case, config_key
from nooom.formulas.errors import UsageError
from nooom.profiler.instruments.cpu import CpuInstrument
from nooom.profiler.measurement import Measurement, Phase, own_code
from nooom.profiler.recorder import Recorder

ROOT = Path(__file__).resolve().parents[2]
BATCH, LENGTH = 2, 48
DEFAULTS: dict[str, Any] = {
    "max_steps": 3, "per_device_train_batch_size": BATCH, "use_cpu": True, "logging_strategy": "no",
    "save_strategy": "no", "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False,
}  # fmt: skip


def rows(count: int = 16, length: int = LENGTH, padding: int = 0) -> list[dict[str, torch.Tensor]]:
    made = []
    for _ in range(count):
        tokens, mask = torch.randint(1, 1000, (length,)), torch.ones(length, dtype=torch.long)
        mask[length - padding :] = 0
        made.append({"input_ids": tokens, "labels": tokens.clone(), "attention_mask": mask})
    return made


def build(folder: Path, *, lora: bool = False) -> Any:
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    if lora:
        from peft import LoraConfig, get_peft_model

        return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    return model


def train(
    model: Any,
    tmp_path: Path,
    callback: Any,
    *,
    kind: Any = Trainer,
    data: Any = None,
    evaluation: Any = None,
    **options: Any,
) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path / "output"), **{**DEFAULTS, **options})
    kind(
        model=model, args=arguments, train_dataset=data or rows(), eval_dataset=evaluation, callbacks=[callback]
    ).train()


def by_name(phases: list[Phase]) -> dict[str, int]:
    return {phase.name: phase.peak_allocated_bytes or 0 for phase in phases}


def ours(case: Case, folder: Path) -> dict[str, int]:
    """Our own workload's phases, in this process."""
    instrument = CpuInstrument()
    instrument.open()
    try:
        recorder = Recorder(instrument)
        config = json.loads((folder / "config.json").read_text())
        run_workload({"case": case.to_dict(), "config": config}, recorder)
        recorder.leave()
    finally:
        instrument.close()
    return by_name(recorder.phases())


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, {"workload": "sft"}),
        ({"gradient_accumulation_steps": 2}, {"workload": "sft", "grad_accumulation": 2}),
        ({"activation_checkpointing": True}, {"workload": "sft", "checkpointing": True}),
        ({"lora": True}, {"workload": "lora", "lora_rank": 4}),
    ],
    ids=["sft", "accumulate", "checkpointing", "lora"],
)
def test_a_training_is_the_case_that_our_own_workload_runs(
    tiny_model: Path, tmp_path: Path, options: dict[str, Any], flags: dict[str, Any]
) -> None:
    callback = nooom.TrainerCallback(out=tmp_path / "results")
    model = build(tiny_model, lora=options.pop("lora", False))
    train(model, tmp_path, callback, **options)
    record = callback.record
    assert list(read(tmp_path / "results")) == [record]
    assert "no_case" not in record.fingerprint, record.fingerprint["no_case"]
    case = Case(model=str(tiny_model), batch=BATCH, seq=LENGTH, dtype="fp32", **flags)
    assert record.case == case.to_dict()
    assert record.case_id == case.case_id(config_key(json.loads((tiny_model / "config.json").read_text())))
    assert (record.source, record.device, record.status, record.error) == ("measured", "cpu", "ok", None)
    found, own = by_name(record.phases), ours(case, tiny_model)
    assert list(found) == ["forward", "backward", "optimizer"]
    assert record.first is not None
    assert [phase["name"] for phase in record.first["phases"]] == list(found)
    # The Trainer fetches a step's micro-batches at once, and keeps losses and counts.
    fetched = case.grad_accumulation * 3 * BATCH * LENGTH * 8
    for name in found:
        assert 0 <= found[name] - own[name] <= fetched + 256, (found, own)
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_an_evaluation_between_steps_is_a_phase_of_its_own(tiny_model: Path, tmp_path: Path) -> None:
    plain, callback = nooom.TrainerCallback(), nooom.TrainerCallback()
    train(build(tiny_model), tmp_path, plain)
    longer = rows(8, 4 * LENGTH)
    train(build(tiny_model), tmp_path, callback, evaluation=longer, eval_strategy="steps", eval_steps=1)
    found, without = by_name(callback.record.phases), by_name(plain.record.phases)
    assert sorted(found) == ["backward", "evaluation", "forward", "optimizer"]
    assert callback.record.case["seq"] == LENGTH
    # 8 rows of four times the length, as logits in fp32 and the loss's copy: no training pass has them.
    assert found["evaluation"] > 8 * 4 * LENGTH * 1000 * 4
    for name, peak in without.items():
        assert found[name] == pytest.approx(peak, abs=4096)


class Doubled(Trainer):
    def compute_loss(self, *given: Any, **named: Any) -> Any:
        return super().compute_loss(*given, **named) * 2


def test_what_no_case_says_is_a_record_of_own_code_with_the_reason(tiny_model: Path, tmp_path: Path) -> None:
    def reason(model: Any = None, **options: Any) -> str:
        callback = nooom.TrainerCallback(name="mine")
        train(model or build(tiny_model), tmp_path, callback, **{"max_steps": 1, **options})
        record = callback.record
        assert record.case == own_code("mine")["case"]
        assert list(by_name(record.phases)) == ["forward", "backward", "optimizer"]
        assert Measurement.from_json(json.loads(json.dumps(record.to_json()))) == record
        return str(record.fingerprint["no_case"])

    nameless = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**json.loads((tiny_model / "config.json").read_text()))
    )
    smaller = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny_model, num_hidden_layers=1))
    frozen = build(tiny_model)
    frozen.model.embed_tokens.requires_grad_(False)
    assert "without a name" in reason(nameless)
    assert "another num_hidden_layers" in reason(smaller)
    assert "frozen" in reason(frozen)
    assert "compute_loss of its own" in reason(kind=Doubled)
    assert "padded rows" in reason(data=rows(padding=7))
    assert "one weight after another" in reason(optim="adamw_torch")
    assert "torch.optim.adagrad" in reason(optim="adagrad").lower()
    assert "clipped" in reason(max_grad_norm=0.0)
    assert "reentrant" in reason(activation_checkpointing=True, activation_checkpointing_kwargs={"use_reentrant": True})
    assert "rows at most" in reason(data=rows(1))


def test_a_training_that_died_leaves_what_it_had_and_no_hooks(tiny_model: Path, tmp_path: Path) -> None:
    class Dies(Trainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            if self.state.global_step == 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return loss

    model = build(tiny_model)
    callback = nooom.TrainerCallback(out=tmp_path / "results", name="dying")
    with pytest.raises(UsageError, match="has seen no training"):
        _ = callback.record
    try:
        train(model, tmp_path, callback, kind=Dies)
    except torch.OutOfMemoryError:
        record = callback.record
    assert (record.status, record.case) == ("oom", {"name": "dying"})
    assert record.error is not None
    assert record.error["tried_bytes"] == 20 << 20
    assert {"forward", "backward"} <= set(by_name(record.phases))
    assert not model._forward_pre_hooks

    with pytest.raises(torch.OutOfMemoryError):
        train(model, tmp_path, callback, kind=Dies)
    model(**{name: value[None] for name, value in rows(1)[0].items()})  # the next use, of the model
    assert callback.record.status == "crashed"
    assert not model._forward_pre_hooks

    with pytest.raises(torch.OutOfMemoryError):
        train(model, tmp_path, callback, kind=Dies)
    train(model, tmp_path, callback)  # the next use, of the callback
    assert callback.record.status == "ok"
    assert [each.status for each in read(tmp_path / "results")] == ["oom", "crashed", "crashed", "ok"]
    with nooom.measure("cpu") as measured:  # nobody's profiler was left running
        torch.empty(10)
    assert measured.peak_allocated_bytes == 40


def test_inside_a_measured_block_both_are_right(tiny_model: Path, tmp_path: Path) -> None:
    callback, alone = nooom.TrainerCallback(name="inside"), nooom.TrainerCallback()
    train(build(tiny_model), tmp_path, alone)
    with nooom.measure("cpu") as measured:
        model = build(tiny_model)
        train(model, tmp_path, callback)
    weights = sum(parameter.nbytes for parameter in {p.data_ptr(): p for p in model.parameters()}.values())
    record = callback.record
    assert "inside another" in record.fingerprint["no_case"]
    assert measured.peak_allocated_bytes is not None
    peak, usual = record.peak_allocated_bytes, alone.record.peak_allocated_bytes
    assert peak is not None
    assert peak >= weights
    assert measured.peak_allocated_bytes >= peak
    assert peak == pytest.approx(usual, rel=0.02)


IN_ANOTHER_REPOSITORY = """
import sys
import nooom
assert "torch" not in sys.modules and "transformers" not in sys.modules
import profiler, benchmarks, formulas
assert profiler.MINE and benchmarks.MINE and formulas.MINE
import torch, json
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("tiny"))
rows = [{name: torch.ones(8, dtype=torch.long) for name in ("input_ids", "labels")} for _ in range(4)]
arguments = TrainingArguments(output_dir="out", max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
with nooom.measure("cpu", name="block", out="results"):
    nooom.phase("tensor")
    torch.empty(10)
callback = nooom.TrainerCallback(out="results")
Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback]).train()

class Dies(Trainer):
    def training_step(self, *given, **named):
        super().training_step(*given, **named)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

Dies(model=model, args=arguments, train_dataset=rows, callbacks=[nooom.TrainerCallback(out="results", name="dies")]).train()
"""


def test_a_repository_with_folders_of_our_names_is_measured_and_a_training_that_kills_its_program_is_recorded(
    tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(IN_ANOTHER_REPOSITORY)
    (tmp_path / "profiler.py").write_text("MINE = True\n")
    for name in ("benchmarks", "formulas"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Tried to allocate 1.00 GiB" in done.stderr
    block, training, died = read(tmp_path / "results")
    assert ([phase.name for phase in block.phases], block.peak_allocated_bytes) == (["block", "tensor"], 40)
    assert (training.case["workload"], training.status) == ("sft", "ok")
    assert (died.case, died.status) == ({"name": "dies"}, "oom")
    assert died.error is not None
    assert died.error["tried_bytes"] == 1 << 30
