"""What ships in ``results/``: in a checkout beside the three folders, in a wheel inside the package."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent
RESULTS = _HERE.parent / "results"
"""The committed results: measurements, calibration tables, counts."""

MEASUREMENTS = (RESULTS / "measured", RESULTS / "demo")
"""The measurements among them: on GPUs (published ones, ours), and the demo's on the CPU."""
