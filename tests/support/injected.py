"""Regressions on purpose: the workloads as they are, with one mistake made in a case's process.

``NOOOM_TEST_INJECT`` is JSON: a case's ``seq`` as text -> the mistake's name.  A script that is given to a Python runs the
command with them: ``python tests/support/injected.py check --baseline ...``.
"""

from __future__ import annotations

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
        from nooom.benchmarks.workloads import run as workload

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
        _alive.append(torch.zeros(1 << 18, device=output.device))

    model.model.norm.register_forward_hook(hook)


def _without_no_grad(arguments: dict[str, Any]) -> dict[str, Any]:
    from transformers import GenerationMixin

    from nooom.benchmarks.workloads import grpo

    grpo.generate = inspect.unwrap(grpo.generate)
    GenerationMixin.generate = inspect.unwrap(GenerationMixin.generate)
    return arguments


MISTAKES = {
    "outputs kept": _on_the_model(_keep_outputs),
    "foreach": _with_flags(optimizer="adamw-foreach"),
    "checkpointing off": _with_flags(checkpointing=False),
    "logits copied": _on_the_model(_copy_logits),
    "a leak": _on_the_model(_leak),
    "no no_grad": _without_no_grad,
}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from nooom.benchmarks import cli, runner

    runner._WORKLOAD = "tests.support.injected:run"
    cli.main()


if __name__ == "__main__":
    main()
