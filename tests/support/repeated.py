"""One case many times: ``python -m tests.support.repeated TIMES DEVICE GPU FOLDER`` writes a journal for each time."""

from __future__ import annotations

import sys
from pathlib import Path

from nooom.benchmarks import devices, runner
from nooom.benchmarks.journal import Journal
from nooom.formulas.case import Case
from nooom.formulas.gpus import find


def main() -> None:
    times, name, gpu, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
    device = devices.choose(name, find(gpu) if gpu else None)
    case = Case(model=str(folder), workload="sft", batch=2, seq=16, dtype="fp32", steps=1)
    (planned,) = runner.plan([case], device)
    for number, record in enumerate(runner.run([planned] * times, device, runner.Options()), 1):
        with Journal(folder / str(number)) as journal:
            journal.append(record)


if __name__ == "__main__":
    main()
