"""Llama's prompts and completions as optimum-benchmark ran them, on the GPU that torch sees; says what they took.

Run by ``benchmarks/old/completions.py`` as a process of its own: the model from its config on standard input, one
forward over the prompt, then ``generate``.  On a phantom its tokens mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from nooom.benchmarks.old import flash_attention

_TOKEN = 2
"""The prompt is this one token, again and again; any would do."""


def complete(config: dict[str, Any], attention: str, batch: int, length: int, new_tokens: int) -> dict[str, int]:
    """Build the model in fp16, run the prompt, and then the prompt and exactly that many more tokens.

    Returns:
        ``start_bytes``, which the model takes, and what was allocated at most during the forward pass,
        ``forward_bytes``, and during ``generate``, ``generate_bytes``.
    """
    if attention == "flash_attention_2":
        flash_attention.install()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    # What this code reads back, whether the mask has a zero, is False on a phantom, as it was.
    with torch.inference_mode():
        described = AutoConfig.for_model(**config)
        described._flash_attn_2_enabled = attention == "flash_attention_2"  # what from_pretrained's option sets
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(described, torch_dtype=torch.float16).eval()
        prompt = torch.full((batch, length), _TOKEN)
        inputs = {"input_ids": prompt.to("cuda"), "attention_mask": torch.ones_like(prompt).to("cuda")}
        start = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        output = model(**inputs)
        forward = torch.cuda.max_memory_allocated()
        del output
        torch.cuda.reset_peak_memory_stats()
        settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        made = model.generate(**inputs, generation_config=settings).shape[1] - length
        if made != new_tokens:
            raise RuntimeError(f"{made} tokens came instead of {new_tokens}")
        return {
            "start_bytes": start, "forward_bytes": forward, "generate_bytes": torch.cuda.max_memory_allocated()
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Complete a prompt as was published, and print what it took.")
    parser.add_argument("attention")
    parser.add_argument("batch", type=int)
    parser.add_argument("length", type=int, help="tokens of the prompt")
    parser.add_argument("new_tokens", type=int)
    given = parser.parse_args()
    print(json.dumps(complete(json.load(sys.stdin), given.attention, given.batch, given.length, given.new_tokens)))


if __name__ == "__main__":
    main()
