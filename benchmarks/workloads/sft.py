"""Full supervised fine-tuning: every weight trains."""

from __future__ import annotations

from typing import Any

import torch

from nooom.benchmarks.workloads.training import train
from nooom.formulas.case import Case
from nooom.profiler.recorder import Recorder


def run(case: Case, model: Any, device: torch.device, recorder: Recorder) -> None:
    """Phases: forward, backward, optimizer."""
    train(case, model, device, recorder)
