"""Regressions on purpose: the workloads as they are, with one mistake made in a case's process.

``NOOOM_TEST_INJECT`` is JSON: a case's ``seq`` as text -> the mistake's name.  A script that is given to a Python runs the
command with them: ``python tests/support/injected.py check --baseline ...``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

VARIABLE = "NOOOM_TEST_INJECT"
_alive: list[Any] = []
"""What a mistake keeps."""


def run(arguments: dict[str, Any], recorder: Any) -> dict[str, Any]:
    """The workloads' entry, with the mistake that is meant for this case."""
    from nooom.benchmarks.workloads.run import run as as_it_is

    mistake = json.loads(os.environ[VARIABLE]).get(str(arguments["case"]["seq"]))
    if mistake is not None:
        arguments = MISTAKES[mistake](arguments)
    return as_it_is(arguments, recorder)


def _with_flags(**flags: Any) -> Any:
    return lambda arguments: {**arguments, "case": {**arguments["case"], **flags}}


def _on_the_model(attach: Any) -> Any:
    """A mistake that is made by a hook on the model when it has been built."""

    def make(arguments: dict[str, Any]) -> dict[str, Any]:
        workload: Any = importlib.import_module("nooom.benchmarks.workloads.run")
        load = workload.load_model

        def loaded(*given: Any) -> Any:
            model = load(*given)
            attach(model)
            return model

        workload.load_model = loaded
        return arguments

    return make


def _keep_outputs(model: Any) -> None:
    def hook(module: Any, given: Any, output: Any) -> None:
        _alive[:] = [output]

    model.register_forward_hook(hook)


def _copy_logits(model: Any) -> None:
    import torch

    def hook(module: Any, given: Any, output: Any) -> None:
        _alive[:] = [output.detach().to(torch.float32, copy=True)]

    model.get_output_embeddings().register_forward_hook(hook)


def _leak(model: Any) -> None:
    import torch

    def hook(module: Any, given: Any, output: Any) -> None:
        _alive.append(torch.zeros(1 << 20, device=output.device))

    model.model.norm.register_forward_hook(hook)


def _without_no_grad(arguments: dict[str, Any]) -> dict[str, Any]:
    grpo: Any = importlib.import_module("nooom.benchmarks.workloads.grpo")
    mixin: Any = importlib.import_module("transformers").GenerationMixin
    for of in (grpo, mixin):
        of.generate = inspect.unwrap(of.generate)
    return arguments


MISTAKES = {
    "outputs kept": _on_the_model(_keep_outputs),
    "foreach": _with_flags(optimizer="adamw-foreach"),
    "checkpointing off": _with_flags(checkpointing=False),
    "logits copied": _on_the_model(_copy_logits),
    "a leak": _on_the_model(_leak),
    "no no_grad": _without_no_grad,
}


SEQ = {name: 40 + number for number, name in enumerate(MISTAKES)}
"""By which a case knows its mistake."""
UNCHANGED = 60
"""The one without any."""

GREW = {
    "outputs kept": ("forward", "logits", "by aten.mm.default of lm_head"),
    "foreach": ("optimizer", "optimizer", "by aten._foreach_"),
    "checkpointing off": ("forward", "activations", None),
    "logits copied": ("backward", "logits", "float32 [2, 43, 8000] by aten._to_copy.default"),
    "a leak": ("optimizer", "activations", "float32 [1048576] by aten.zeros.default of model"),
    "no no_grad": ("rollout", "activations", None),
}
"""Of each mistake: a phase that takes more, the component that grew most there, and what a tensor's name has in it."""


def suite(model: Path) -> str:
    """The cases that the mistakes are made in, and one that none is made in, as TOML."""
    sft = [UNCHANGED, *(SEQ[name] for name in ("outputs kept", "foreach", "logits copied", "a leak"))]
    return f"""
[defaults]
model = {json.dumps(str(model))}
batch = 2
dtype = "fp32"
steps = 1
[[case]]
workload = "sft"
seq = {sft}
[[case]]
workload = "sft"
seq = {SEQ["checkpointing off"]}
checkpointing = true
[[case]]
workload = "grpo"
full = true
reference = "none"
seq = {SEQ["no no_grad"]}
new_tokens = 8
group_size = 2
"""


def environment() -> dict[str, str]:
    """The variable that makes every mistake in its case."""
    return {VARIABLE: json.dumps({str(seq): name for name, seq in SEQ.items()})}


def check(document: dict[str, Any]) -> None:
    """What ``check --json`` has to say: each mistake by its phase, component and tensor, and nothing else."""
    rows = document["rows"]
    for name, (phase, component, tensor) in GREW.items():
        (row,) = [row for row in rows if f" 2x{SEQ[name]}" in row["case"] and row["phase"] == phase]
        assert row["state"] == "regression", (name, row)
        components = [one for one in row["grew"] if one["kind"] == "component"]
        assert components[0]["name"] == component, (name, row["grew"])
        assert components[0]["change_bytes"] > 0
        named = [one["name"] for one in row["grew"] if one["kind"] == "tensor" and one["change_bytes"] > 0]
        assert tensor is None or any(tensor in one for one in named), (name, row["grew"])
    assert {row["state"] for row in rows if f" 2x{UNCHANGED} " in row["case"]} == {"pass"}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from nooom.benchmarks import cli, runner

    runner._WORKLOAD = "tests.support.injected:run"
    cli.main()


if __name__ == "__main__":
    main()
