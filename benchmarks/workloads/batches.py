"""Random tokens in the shapes of a case: right-padded with labels to train on, left-padded to generate from."""

from __future__ import annotations

import torch

from nooom.formulas.case import Case

_IGNORED = -100
"""The label that transformers' losses leave out."""
_PAD = 0


def training_batch(case: Case, vocab_size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """``input_ids``, ``attention_mask``, ``labels``: int64 of shape (batch, seq), padding on the right."""
    tokens = _tokens(case.batch, case.seq, vocab_size, device)
    mask = _mask(case, device).flip(1)
    return {
        "input_ids": tokens.masked_fill_(mask == 0, _PAD),
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, _IGNORED),
    }


def prompts(case: Case, vocab_size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``attention_mask``, int64 of shape (batch, seq); padding stands on the left.

    For grpo the rows of a group are copies of one prompt (each with its own padding, where the case asks for any).
    """
    if case.workload == "grpo":
        groups = _tokens(case.batch // case.group_size, case.seq, vocab_size, device)
        tokens = groups.repeat_interleave(case.group_size, dim=0)
    else:
        tokens = _tokens(case.batch, case.seq, vocab_size, device)
    mask = _mask(case, device)
    return {"input_ids": tokens.masked_fill_(mask == 0, _PAD), "attention_mask": mask}


def _tokens(rows: int, columns: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    return torch.randint(_PAD + 1, vocab_size, (rows, columns), device=device)


def _mask(case: Case, device: torch.device) -> torch.Tensor:
    """Ones, with the case's padding as zeros on the left of every row but the first."""
    mask = torch.ones(case.batch, case.seq, dtype=torch.long, device=device)
    if case.padded_tokens:
        mask[1:, : case.padded_tokens] = 0
    return mask
