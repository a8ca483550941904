"""What every case imports sooner or later, imported once by the fork server so that no child pays for it.

Imports only: a server that computes anything with threads would hang its children.
"""

import accelerate.optimizer
import peft.tuners.lora
import torch.optim
import transformers.generation.utils
import transformers.training_args

from nooom.benchmarks.workloads import run
from nooom.profiler.instruments import cpu, rss

__all__ = ["accelerate", "cpu", "peft", "rss", "run", "torch", "transformers"]
