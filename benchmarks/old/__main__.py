"""``python -m nooom.benchmarks.old results/emulated/published.jsonl``: published fine-tunings, in their own versions.

To be run by a Python that has torch 2.4.1, transformers 4.48.1, peft 0.13.2 and accelerate 1.0.1 (``make oracle-old``).
Each run of :data:`RUNS` is played on a phantom A100 and becomes one line: the id of the published figure, how it was
run, the bytes.  ``emulated_against_published.py`` makes a page of them.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nooom.benchmarks.models.zoo import resolve
from nooom.formulas.errors import CannotMeasureError, NooomError, UsageError
from nooom.formulas.gpus import find
from nooom.profiler.phantom.launcher import Phantom

VERSIONS = {"torch": "2.4.1", "transformers": "4.48.1", "peft": "0.13.2", "accelerate": "1.0.1"}
GPU = "a100-80gb"
MISTRAL, SANTACODER = "mistralai/Mistral-7B-v0.1", "bigcode/gpt_bigcode-santacoder"
VOCABULARY = {MISTRAL: 32_001, SANTACODER: 49_158}
"""Rows of the embeddings once the published runs had fitted them to a tokenizer with a padding token of its own."""
_LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published run, or a variation of it that explains something."""

    published: str
    model: str
    workload: str
    batch: int
    seq: int
    attention: str = "flash_attention_2"
    own_vocabulary: bool = True
    """With the published run's number of tokens; False: the config's."""


RUNS = (
    Run(published="M1168", model=SANTACODER, workload="sft", batch=4, seq=2048),
    Run(published="M1171", model=SANTACODER, workload="sft", batch=8, seq=2048),
    Run(published="M1176", model=MISTRAL, workload="sft", batch=4, seq=4096),
    Run(published="M1179", model=MISTRAL, workload="sft", batch=8, seq=4096),
    Run(published="M1184", model=MISTRAL, workload="lora", batch=4, seq=4096),
    Run(published="M1187", model=MISTRAL, workload="lora", batch=8, seq=4096),
    Run(published="M1184", model=MISTRAL, workload="lora", batch=4, seq=4096, attention="sdpa"),
    Run(published="M1187", model=MISTRAL, workload="lora", batch=8, seq=4096, attention="sdpa"),
    Run(published="M1176", model=MISTRAL, workload="sft", batch=4, seq=4096, own_vocabulary=False),
    Run(published="M1184", model=MISTRAL, workload="lora", batch=4, seq=4096, own_vocabulary=False),
)


def play(run: Run, environment: Mapping[str, str]) -> dict[str, Any]:
    """The run's line.  Raises CannotMeasureError, with the end of what it printed, for one that fails."""
    config = copy.deepcopy(resolve(run.model).config)
    if run.own_vocabulary:
        config["vocab_size"] = VOCABULARY[run.model]
    command = [sys.executable, "-m", "nooom.benchmarks.old.finetune", run.workload, str(run.batch), str(run.seq)]
    done = subprocess.run(
        [*command, "--attention", run.attention], input=json.dumps(config), env=dict(environment), capture_output=True,
        text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise CannotMeasureError(f"{run.published} failed: {done.stderr.strip()[-500:]}")
    how = {name: getattr(run, name) for name in ("published", "model", "workload", "batch", "seq", "attention")}
    found = json.loads(done.stdout.splitlines()[-1])
    return {**how, "vocab_size": config["vocab_size"], **found, "gpu": GPU, "versions": VERSIONS}


def main(file: Path) -> None:
    """Play every run and write the file."""
    installed = {name: version(name) for name in VERSIONS}
    if installed != VERSIONS:
        raise UsageError(f"these runs are of {VERSIONS}, and here are {installed}: make oracle-old")
    with Phantom(find(GPU)) as phantom:
        environment = phantom.environment({**os.environ, "HF_HUB_OFFLINE": "1"})
        lines = []
        for run in RUNS:
            print(f"{run.published} {run.model} {run.workload} {run.batch}x{run.seq} {run.attention}", file=sys.stderr)
            lines.append(json.dumps(play(run, environment)))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except NooomError as error:
        sys.exit(f"nooom: {error}")
