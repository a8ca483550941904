"""Batches have the case's shape, and padding where the contract puts it."""

from __future__ import annotations

import torch

from nooom.benchmarks.workloads.batches import prompts, training_batch
from nooom.formulas.case import Case

CPU = torch.device("cpu")


def test_training_rows_but_the_first_are_padded_on_the_right() -> None:
    case = Case(model="m", workload="sft", batch=3, seq=8, padding=0.25)
    batch = training_batch(case, 100, CPU)
    assert batch["attention_mask"].tolist() == [[1] * 8, [1] * 6 + [0] * 2, [1] * 6 + [0] * 2]
    assert (batch["labels"][1:, 6:] == -100).all()
    assert (batch["input_ids"][1:, 6:] == 0).all()
    real = batch["attention_mask"].bool()
    assert torch.equal(batch["labels"][real], batch["input_ids"][real])
    assert (batch["input_ids"][real] > 0).all()


def test_prompts_are_padded_on_the_left() -> None:
    case = Case(model="m", workload="inference", batch=2, seq=4, new_tokens=1, padding=0.5)
    assert prompts(case, 100, CPU)["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1]]


def test_the_completions_of_a_group_share_their_prompt() -> None:
    case = Case(model="m", workload="grpo", batch=4, group_size=2, seq=16)
    rows = prompts(case, 50_000, CPU)["input_ids"]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[2], rows[3])
    assert not torch.equal(rows[0], rows[2])
