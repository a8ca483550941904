"""``python -m nooom.benchmarks.old.speed results/emulated/as_run.jsonl``: Qwen2.5's published prefills, as run.

To be run by a Python that has torch 2.4.1, transformers 4.46.0 and accelerate 1.0.1 (``make oracle-old``).  Each row of
:data:`ROWS` is played on a phantom A100 in a process of its own and becomes one line: the id of the published figure,
how it was run, the bytes.  ``emulated_against_published.py`` makes a table of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from nooom.benchmarks.models.zoo import resolve
from nooom.benchmarks.old import zeros
from nooom.formulas.errors import CannotMeasureError, NooomError, UsageError
from nooom.formulas.gpus import find
from nooom.profiler.phantom.launcher import Phantom

VERSIONS = {"torch": "2.4.1", "transformers": "4.46.0", "accelerate": "1.0.1"}
"""The published runs had torch 2.3.1."""
GPU = "a100-80gb"
GENERATION: dict[str, Any] = {
    "bos_token_id": 151643, "pad_token_id": 151643, "eos_token_id": [151645, 151643], "do_sample": True,
    "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
}  # fmt: skip
"""As the checkpoints have it; the smallest one's penalty is 1.1, which makes the same tensors."""
_LIMIT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published row."""

    id: str
    model: str
    length: int
    new_tokens: int = 2
    """The published rows made 2048.  After a long prompt its pass is the peak, which two tokens show."""


ROWS = (
    Row(id="M0145", model="Qwen/Qwen2.5-0.5B", length=1, new_tokens=2048),
    Row(id="M0149", model="Qwen/Qwen2.5-0.5B", length=6144),
    Row(id="M0153", model="Qwen/Qwen2.5-0.5B", length=14336),
    Row(id="M0157", model="Qwen/Qwen2.5-0.5B", length=30720),
    Row(id="M0193", model="Qwen/Qwen2.5-7B", length=1, new_tokens=2048),
    Row(id="M0197", model="Qwen/Qwen2.5-7B", length=6144),
    Row(id="M0201", model="Qwen/Qwen2.5-7B", length=14336),
    Row(id="M0205", model="Qwen/Qwen2.5-7B", length=30720),
    Row(id="M0209", model="Qwen/Qwen2.5-14B", length=1, new_tokens=2048),
    Row(id="M0213", model="Qwen/Qwen2.5-14B", length=6144),
    Row(id="M0217", model="Qwen/Qwen2.5-14B", length=14336),
    Row(id="M0221", model="Qwen/Qwen2.5-14B", length=30720),
)
"""After a prompt of one token the peak comes with the last of 2048, which take Python minutes."""


def play(row: Row, checkpoint: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """The row's line.  Raises CannotMeasureError, with the end of what it printed, for one that fails."""
    command = [sys.executable, "-m", "nooom.benchmarks.old.generate", str(checkpoint)]
    done = subprocess.run(
        [*command, str(row.length), str(row.new_tokens)], env=dict(environment), capture_output=True, text=True,
        timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise CannotMeasureError(f"{row.id} failed: {done.stderr.strip()[-500:]}")
    how = {"id": row.id, "model": row.model, "length": row.length, "new_tokens": row.new_tokens}
    found = json.loads(done.stdout.splitlines()[-1])
    return {**how, **found, "torch": VERSIONS["torch"], "transformers": VERSIONS["transformers"]}


def main(file: Path) -> None:
    """Play every row and write the file."""
    installed = {name: version(name) for name in VERSIONS}
    if installed != VERSIONS:
        raise UsageError(f"these rows are of {VERSIONS}, and here are {installed}: make oracle-old")
    lines = []
    with Phantom(find(GPU)) as phantom:
        environment = phantom.environment({**os.environ, "HF_HUB_OFFLINE": "1"})
        for model, rows in groupby(ROWS, key=lambda row: row.model):
            with tempfile.TemporaryDirectory() as folder:
                zeros.write(resolve(model).config, GENERATION, Path(folder))
                for row in rows:
                    print(f"{row.id} {row.model} {row.length} + {row.new_tokens}", file=sys.stderr)
                    lines.append(json.dumps(play(row, Path(folder), environment)))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play Qwen2.5's published prefills as they were run.")
    parser.add_argument("file", type=Path, help="to write, one line a row")
    try:
        main(parser.parse_args().file)
    except NooomError as error:
        sys.exit(f"nooom: {error}")
