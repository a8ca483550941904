"""A checkpoint of zeros that takes no room on the disk, for ``from_pretrained`` to load onto a phantom GPU.

How a model came to the GPU decides which free blocks the allocator has left, and so a small model's peak.  Published
runs loaded checkpoints; their values are nothing to a phantom.  What counts is kept: names, shapes, the order of the
tensors in a file and their division over files.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SHARD_BYTES = 4_000_000_000
"""The files of Qwen2.5's own checkpoints are no larger."""
_ITEM_BYTES = 2
"""bf16's."""

_Shapes = list[tuple[str, list[int], int]]
"""A tensor's name, shape and bytes."""


def write(config: dict[str, Any], generation: dict[str, Any], folder: Path) -> None:
    """Write the checkpoint in bf16, with the configs of the model and of its generation beside it."""
    files = list(_shards(_tensors(config)))
    names = [f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)]
    if len(files) == 1:
        names = ["model.safetensors"]
    for name, tensors in zip(names, files, strict=True):
        _write_file(folder / name, tensors)
    if len(files) > 1:
        places = {tensor: name for name, tensors in zip(names, files, strict=True) for tensor, _, _ in tensors}
        total = sum(size for tensors in files for _, _, size in tensors)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")


def _tensors(config: dict[str, Any]) -> _Shapes:
    """The model's parameters in its order; of tied ones, the first."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        model.tie_weights()
    return [(name, list(item.shape), item.numel() * _ITEM_BYTES) for name, item in model.named_parameters()]


def _shards(tensors: _Shapes) -> Iterator[_Shapes]:
    shard: _Shapes = []
    for tensor in tensors:
        if shard and sum(size for _, _, size in [*shard, tensor]) > _SHARD_BYTES:
            yield shard
            shard = []
        shard.append(tensor)
    yield shard


def _write_file(path: Path, tensors: _Shapes) -> None:
    """In the format of safetensors, whose writer puts tensors of one type in the order of their names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape, size in sorted(tensors):
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + end)  # a hole, which reads as zeros
