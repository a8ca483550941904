"""A fine-tuning as it was run and published with transformers 4.48, on the GPU that torch sees; says what it took.

Run by ``benchmarks/old/__main__.py`` as a process of its own: the model from its config on standard input, PEFT's LoRA,
Hugging Face's Trainer with its memory tracker, whose figures were published.  On a phantom its loss and its weights
mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from typing import Any

from nooom.benchmarks.old import flash_attention
from nooom.profiler.phantom.program import prepare

LORA: dict[str, Any] = {
    "r": 16, "lora_alpha": 16, "lora_dropout": 0.1, "task_type": "CAUSAL_LM",
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "gradient_checkpointing": True, "optim": "adamw_torch", "weight_decay": 0.01, "warmup_steps": 10,
    "adam_epsilon": 1e-4, "lr_scheduler_type": "linear", "include_tokens_per_second": True, "logging_steps": 10,
    "save_strategy": "no", "report_to": [], "disable_tqdm": True, "skip_memory_metrics": False,
}  # fmt: skip
"""As the publication's scenarios have them; checkpointing is the reentrant kind, which was the default then."""


def finetune(config: dict[str, Any], workload: str, batch: int, length: int, attention: str, steps: int) -> Any:
    """Fine-tune for a few steps on rows without padding, with weights in bf16 and no autocast.

    Returns:
        The tracker's bytes of the whole process: ``start_allocated_bytes`` before training, and training's
        ``peak_allocated_bytes`` and ``end_allocated_bytes``, its last batch included.
    """
    if attention == "flash_attention_2":
        flash_attention.install()
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments, default_data_collator

    with prepare(), tempfile.TemporaryDirectory() as folder:
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(**config), torch_dtype=torch.bfloat16, attn_implementation=attention
            )
        if workload == "lora":
            model.enable_input_require_grads()
            model = get_peft_model(model, LoraConfig(**LORA))
        row = {name: [1] * length for name in ("input_ids", "attention_mask", "labels")}
        trainer = Trainer(
            model=model,
            args=TrainingArguments(folder, per_device_train_batch_size=batch, max_steps=steps, **SETTINGS),
            train_dataset=[row] * batch * steps,
            data_collator=default_data_collator,
        )
        seen = trainer.train().metrics
    start = seen["before_init_mem_gpu"] + seen["init_mem_gpu_alloc_delta"]
    end = start + seen["train_mem_gpu_alloc_delta"]
    return {
        "start_allocated_bytes": start,
        "peak_allocated_bytes": end + seen["train_mem_gpu_peaked_delta"],
        "end_allocated_bytes": end,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune as was published, and print what it took.")
    parser.add_argument("workload", choices=("sft", "lora"))
    parser.add_argument("batch", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("--attention", default="flash_attention_2", choices=("flash_attention_2", "sdpa"))
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    config = json.load(sys.stdin)
    print(json.dumps(finetune(config, given.workload, given.batch, given.length, given.attention, given.steps)))


if __name__ == "__main__":
    main()
