"""nooom measures, predicts and guards the GPU memory that large language models take.

The code lives in three folders (``formulas``, ``profiler``, ``benchmarks``) whose names are too common to be
import names.  In a wheel they lie inside this package; in a checkout they lie beside it, and this package then
adds the checkout's root to its own search path, so that ``nooom.formulas`` means the same in both.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HERE = Path(__file__).resolve().parent
if not (_HERE / "formulas").is_dir() and (_HERE.parent / "formulas").is_dir():
    __path__.append(str(_HERE.parent))

if TYPE_CHECKING:
    from nooom.benchmarks.frame import load as load
    from nooom.formulas.case import Case as Case
    from nooom.formulas.shape import ModelShape as ModelShape
    from nooom.profiler.block import measure as measure
    from nooom.profiler.block import phase as phase
    from nooom.profiler.trainer import TrainerCallback as TrainerCallback

# What users touch, imported only when touched: `import nooom` costs nothing and drags in neither torch nor pandas.
_EXPORTS = {
    "Case": "nooom.formulas.case",
    "ModelShape": "nooom.formulas.shape",
    "TrainerCallback": "nooom.profiler.trainer",
    "load": "nooom.benchmarks.frame",
    "measure": "nooom.profiler.block",
    "phase": "nooom.profiler.block",
}

__all__ = ["Case", "ModelShape", "TrainerCallback", "__version__", "load", "measure", "phase"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'nooom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
