"""``model.generate`` with an exact length: EOS disabled, and a mark where prefill ends and decoding begins."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from nooom.profiler.recorder import Recorder


class _Marker(LogitsProcessor):
    """Called by ``generate`` once a token, first right after the prefill."""

    def __init__(self, recorder: Recorder, decode_phase: str | None) -> None:
        self._recorder = recorder
        self._decode_phase = decode_phase

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if self._decode_phase is not None:
            self._recorder.enter(self._decode_phase)
            self._decode_phase = None
        else:
            self._recorder.breathe()
        return scores


@torch.no_grad()
def generate(
    model: Any,
    inputs: dict[str, Any],
    new_tokens: int,
    recorder: Recorder,
    *,
    sampled: bool,
    decode_phase: str | None = None,
) -> torch.Tensor:
    """Exactly ``new_tokens`` more tokens for every row.

    Args:
        model: a causal language model, or a peft model around one, in eval mode.
        inputs: ``input_ids`` and ``attention_mask`` of shape (batch, prompt), and ``past_key_values`` when a prefill
            has already run.
        new_tokens: how many; EOS can't end a row early.
        recorder: breathes once a token.
        sampled: draw from the whole distribution at temperature 1; greedy otherwise.
        decode_phase: the phase to enter when the prefill is over; None stays in the phase that is open.

    Returns:
        int64 of shape (batch, prompt + new_tokens).
    """
    config = GenerationConfig(
        max_new_tokens=new_tokens,
        min_new_tokens=None,
        do_sample=sampled,
        **({"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sampled else {}),
        eos_token_id=None,
        pad_token_id=0,
        use_cache=True,
    )
    # The model's own generation config would fill what is not set, its EOS above all.
    model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=None)
    marker = LogitsProcessorList([_Marker(recorder, decode_phase)])
    return model.generate(**inputs, generation_config=config, logits_processor=marker)  # type: ignore[no-any-return]
