"""``python -m nooom.benchmarks.old.completions results/emulated/completions.jsonl``: Llama 2's published runs, as run.

To be run by a Python that has torch 2.1.1 and transformers 4.35.2 (``make oracle-older``).  Each run is played on a
phantom A100 in a process of its own and becomes one line: the ids of the two published figures, how it was run, the
bytes.  ``accuracy.md`` shows them beside the dry run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nooom.benchmarks.journal import read
from nooom.benchmarks.models.zoo import resolve
from nooom.benchmarks.shipped import RESULTS
from nooom.formulas.errors import CannotMeasureError, NooomError, UsageError
from nooom.formulas.gpus import find
from nooom.profiler.measurement import Measurement
from nooom.profiler.phantom.launcher import Phantom

VERSIONS = {"torch": "2.1.1", "transformers": "4.35.2"}
GPU = "a100-80gb"
_LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One process of the published benchmark: a forward pass over the prompt, then the prompt and its completion."""

    forward: Measurement
    generate: Measurement

    @property
    def ids(self) -> list[str]:
        return [str(record.fingerprint["published"][0]) for record in (self.forward, self.generate)]


def runs() -> Iterator[Run]:
    """Every published pair that ran with this transformers, in the manifest's order."""
    prompts: dict[str, Measurement] = {}
    for record in read(RESULTS / "measured" / "public"):
        if record.fingerprint["transformers"] != VERSIONS["transformers"]:
            continue
        alike = json.dumps({**record.case, "new_tokens": None}, sort_keys=True)
        if record.case["new_tokens"]:
            yield Run(forward=prompts[alike], generate=record)
        else:
            prompts[alike] = record


def play(run: Run, environment: Mapping[str, str]) -> dict[str, Any]:
    """The run's line.  Raises CannotMeasureError, with the end of what it printed, for one that fails."""
    case = run.generate.case
    numbers = [str(case[name]) for name in ("batch", "seq", "new_tokens")]
    command = [sys.executable, "-m", "nooom.benchmarks.old.complete", case["attention"], *numbers]
    done = subprocess.run(
        command, input=json.dumps(resolve(case["model"]).config), env=dict(environment), capture_output=True, text=True,
        timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise CannotMeasureError(f"{' '.join(run.ids)} failed: {done.stderr.strip()[-500:]}")
    how = {name: case[name] for name in ("model", "attention", "batch", "seq", "new_tokens")}
    return {"ids": run.ids, **how, **json.loads(done.stdout.splitlines()[-1]), "gpu": GPU, "versions": VERSIONS}


def main(file: Path) -> None:
    """Play every run and write the file."""
    installed = {name: version(name) for name in VERSIONS}
    if installed != VERSIONS:
        raise UsageError(f"these runs are of {VERSIONS}, and here are {installed}: make oracle-older")
    lines = []
    with Phantom(find(GPU)) as phantom:
        environment = phantom.environment({**os.environ, "HF_HUB_OFFLINE": "1"})
        for run in runs():
            print(f"{' '.join(run.ids)} {run.generate.case['model']}", file=sys.stderr, flush=True)
            lines.append(json.dumps(play(run, environment)))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except NooomError as error:
        sys.exit(f"nooom: {error}")
