"""``nooom measure``'s table: a command of any length gives way, a figure never does."""

from __future__ import annotations

import io

from nooom.benchmarks.commands.measure import _show
from nooom.benchmarks.reports.console import console
from nooom.profiler.command import Ended, OnGpu, Process


def on(index: int) -> OnGpu:
    figures = {"max_allocated_bytes": 71 << 30, "max_reserved_bytes": 72 << 30, "max_active_bytes": 71 << 30}
    return OnGpu(index=index, device_bytes=73 << 30, **figures)


def test_a_program_of_many_lines_takes_one_and_cuts_no_figure() -> None:
    program = "import torch\n" + "x = torch.ones(3)\n" * 20
    for gpus in ((on(0),), (on(0), on(1))):
        out = console()
        out.file, out.width = io.StringIO(), 80
        _show(Ended(exit_code=0, processes=(Process(pid=7, command=("python", "-c", program), gpus=gpus),)), None, out)
        shown = out.file.getvalue()
        assert max(map(len, shown.splitlines())) <= 80
        assert shown.count("71.000") == 2 * len(gpus)
        assert shown.count("73.000") == len(gpus)
        assert len(shown.strip().splitlines()) == 2 + len(gpus)
