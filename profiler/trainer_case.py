"""Which case a ``transformers.Trainer`` runs, as far as a case can say it, and why not where it can't.

Whatever is left out here would make two different trainings one case: what is not known to be what the case's words
mean is a reason, and the record is then of anyone's own code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nooom.formulas.case import Case, CaseError, config_key
from nooom.profiler.fingerprint import allocator_settings

_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_ATTENTION = ("sdpa", "eager", "flash_attention_2")
_SIZES = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads", "vocab_size")
_LONGEST_STEPS = 1000
_ONE_ADAPTER: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "modules_to_save": (None, []),
    "use_dora": (False,),
    "layer_replication": (None,),
}
"""Of peft's LoraConfig: what else than a plain adapter it may ask for, and the values that ask for nothing."""


class Inexpressible(Exception):  # noqa: N818 - an answer, no error
    """A training that no case describes; the message says what of it."""


@dataclasses.dataclass
class Seen:
    """What the forward passes of a training were given."""

    rows: int = 0
    length: int = 0
    padded: bool = False
    steps: int = 0


def case_of(trainer: Any, args: Any, model: Any, optimizer: Any, seen: Seen) -> tuple[dict[str, Any], str]:
    """``case_id`` and ``case`` of a training, and the model's name.

    Args:
        trainer: the Trainer itself where it was found, else None.
        args: its TrainingArguments.
        model: as it was given to it.
        optimizer: as it made it.
        seen: what went through the model.

    Raises:
        Inexpressible: no case says it.
    """
    for reason in (*_of_the_trainer(trainer), *_of_the_arguments(args), *_of_the_inputs(args, seen)):
        raise Inexpressible(reason)
    name, key = _model(model)
    flags: dict[str, Any] = {
        "model": name,
        "batch": int(args.per_device_train_batch_size),
        "seq": seen.length,
        "autocast": "bf16" if args.bf16 else "fp16" if args.fp16 else "none",
        "attention": _attention(model),
        "optimizer": _optimizer(optimizer),
        "checkpointing": _checkpointing(model),
        "grad_accumulation": int(args.gradient_accumulation_steps),
        "steps": min(max(seen.steps, 1), _LONGEST_STEPS),
        "allocator": allocator_settings(),
        **(_adapter(model) if hasattr(model, "peft_config") else _all_weights(model)),
    }
    try:
        case = Case(**flags)
    except CaseError as error:
        raise Inexpressible(str(error)) from error
    return {"case_id": case.case_id(key), "case": case.to_dict()}, name


def _of_the_trainer(trainer: Any) -> Iterator[str]:
    from transformers import Trainer

    if trainer is None:
        yield "the training loop is not the Trainer's"
        return
    for method in ("training_step", "compute_loss", "_inner_training_loop"):
        if getattr(type(trainer), method, None) is not getattr(Trainer, method, None):
            yield f"{type(trainer).__name__} has a {method} of its own"
    if getattr(trainer, "compute_loss_func", None) is not None:
        yield "compute_loss_func"
    if getattr(trainer, "label_smoother", None) is not None:
        yield "label smoothing"


def _of_the_arguments(args: Any) -> Iterator[str]:
    if args.world_size > 1:
        yield f"{args.world_size} processes"
    for name in (
        "deepspeed", "fsdp", "torch_compile", "use_liger_kernel", "neftune_noise_alpha", "torch_empty_cache_steps",
        "optim_args", "auto_find_batch_size",
    ):  # fmt: skip
        if getattr(args, name, None):
            yield name
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        if set(getattr(args, name, None) or {}) - {"use_reentrant"}:
            yield name
    if not args.max_grad_norm:
        yield "gradients that are not clipped"


def _of_the_inputs(args: Any, seen: Seen) -> Iterator[str]:
    if not seen.length:
        yield "no input_ids were seen"
    elif seen.rows != args.per_device_train_batch_size:
        yield f"{seen.rows} rows at most, not per_device_train_batch_size"
    if seen.padded:
        yield "padded rows"


def _model(model: Any) -> tuple[str, str | None]:
    """Its name, and what stands for it in the identity where the name is a folder.

    A name says how large the model is only if the config was not changed after it had been loaded.
    """
    from transformers import AutoConfig

    config = model.config
    name = getattr(config, "_name_or_path", "") or ""
    if not name:
        raise Inexpressible("a model without a name: its config was not loaded from anywhere")
    named: Any = None
    try:
        named = AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        if Path(name).is_dir():
            raise Inexpressible(f"a model from a folder without a config: {name}") from None
    if named is not None:
        for size in _SIZES:
            if getattr(_text(named), size, None) != getattr(_text(config), size, None):
                raise Inexpressible(f"a model that is not {name}: another {size}")
    file = Path(name) / "config.json"
    key = config_key(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
    return name, key


def _text(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _attention(model: Any) -> str:
    found = str(getattr(model.config, "_attn_implementation", None))
    if found not in _ATTENTION:
        raise Inexpressible(f"the attention implementation {found}")
    return found


def _dtype(parameters: list[Any], what: str) -> str:
    found = {parameter.dtype for parameter in parameters}
    if len(found) != 1 or not found <= set(_DTYPES):
        raise Inexpressible(f"{what} of {', '.join(sorted(map(str, found))) or 'no type'}")
    return _DTYPES[found.pop()]


def _all_weights(model: Any) -> dict[str, Any]:
    parameters = list(model.parameters())
    if getattr(model, "is_quantized", False):
        raise Inexpressible("quantized weights")
    if not all(parameter.requires_grad for parameter in parameters):
        raise Inexpressible("weights of which some are frozen, without an adapter")
    return {"workload": "sft", "dtype": _dtype(parameters, "weights")}


def _adapter(model: Any) -> dict[str, Any]:
    if len(model.peft_config) != 1:
        raise Inexpressible(f"{len(model.peft_config)} adapters")
    (config,) = model.peft_config.values()
    if str(getattr(config.peft_type, "value", config.peft_type)) != "LORA":
        raise Inexpressible(f"the adapter {config.peft_type}")
    if getattr(model, "is_quantized", False) or getattr(model.get_base_model(), "is_quantized", False):
        raise Inexpressible("a quantized base")
    for name, plain in _ONE_ADAPTER.items():
        if getattr(config, name, plain[0]) not in plain:
            raise Inexpressible(f"LoRA with {name}")
    if config.rank_pattern:
        raise Inexpressible("LoRA with rank_pattern")
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained or not all("lora_A" in name or "lora_B" in name for name in trained):
        raise Inexpressible("weights that train beside the adapter")
    adapter = _dtype(list(trained.values()), "adapters")
    if adapter == "fp16":
        raise Inexpressible("an adapter of fp16")
    return {
        "workload": "lora",
        "dtype": _dtype([each for name, each in model.named_parameters() if name not in trained], "weights"),
        "lora_rank": int(config.r),
        "lora_targets": _targets(model),
        "lora_dropout": float(config.lora_dropout),
        "lora_dtype": adapter,
    }


def _targets(model: Any) -> str:
    """The names of the modules that have an adapter; all-linear where those are all that peft would take for it."""
    head = model.get_base_model().get_output_embeddings()
    adapted: set[str] = set()
    plain: set[str] = set()
    for path, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            adapted.add(path.rpartition(".")[2])
        elif isinstance(module, torch.nn.Linear) and module is not head and ".lora_" not in path:
            *above, name = path.split(".")
            if name != "base_layer":
                plain.add(name)
            elif getattr(model.get_submodule(".".join(above)), "lora_A", None) is None:
                plain.add(above[-1])
    if adapted & plain:
        raise Inexpressible("LoRA on some layers only")
    whole = not plain and not hasattr(head, "lora_A")  # peft's all-linear leaves the head out
    return "all-linear" if whole else ",".join(sorted(adapted))


def _optimizer(prepared: Any) -> str:
    optimizer = getattr(prepared, "optimizer", prepared)
    options = optimizer.defaults
    kind = type(optimizer)
    if kind is torch.optim.SGD and not options["nesterov"] and options["momentum"] in (0, 0.9):
        return "sgd-momentum" if options["momentum"] else "sgd"
    if kind.__name__ == "Adafactor" and kind.__module__.startswith("transformers."):
        if options["beta1"] is None and not options["scale_parameter"] and not options["relative_step"]:
            return "adafactor"
    elif kind is torch.optim.AdamW and not options["amsgrad"] and not options["capturable"]:
        return _adamw(optimizer)
    raise Inexpressible(f"the optimizer {kind.__module__}.{kind.__name__} with its options")


def _adamw(optimizer: Any) -> str:
    """Which of PyTorch's implementations runs: its own choice on a GPU is the foreach one."""
    fused, foreach = optimizer.defaults["fused"], optimizer.defaults["foreach"]
    if fused:
        return "adamw" if _default_optimizer() == "adamw_torch_fused" else "adamw-fused"
    on_gpu = any(parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"])
    if foreach or (foreach is None and on_gpu):
        return "adamw-foreach"
    raise Inexpressible("AdamW one weight after another")


def _default_optimizer() -> str:
    from transformers import TrainingArguments

    defaults = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    return str(getattr(defaults["optim"], "value", defaults["optim"]))


def _checkpointing(model: Any) -> bool:
    on = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    for module in on:
        given = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", {})
        if given.get("use_reentrant") is not False:
            raise Inexpressible("reentrant checkpointing")
    return bool(on)
