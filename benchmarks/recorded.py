"""Dry runs that are kept as records: predictions, which stand beside measurements of the same case on the same GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nooom.benchmarks.compare import Row
from nooom.benchmarks.sources import DRYRUN, PEAK
from nooom.formulas.gpus import file_name

if TYPE_CHECKING:
    import pandas as pd

_Key = tuple[str, str]


def apart(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What was measured or emulated, and the dry runs: no dry run is ever called measured."""
    dry = (table["source"] == DRYRUN).fillna(False)
    return table[~dry], table[dry]


def beside(rows: Sequence[Row], dry_runs: pd.DataFrame) -> list[Row]:
    """The rows, with what a dry run of the same case for the same GPU said; of several the last.

    Args:
        rows: of what was measured.
        dry_runs: as :func:`apart` gives them; those that did not finish say nothing.
    """
    said = _figures(dry_runs)
    return [
        dataclasses.replace(row, predicted_bytes={**row.predicted_bytes, DRYRUN: said[key][row.phase]})
        if (key := _key(row.case_id, row.gpu, row.gpu_total_bytes)) in said and row.phase in said[key]
        else row
        for row in rows
    ]


def _figures(dry_runs: pd.DataFrame) -> Mapping[_Key, Mapping[str, int]]:
    last: dict[_Key, tuple[int, dict[str, int]]] = {}
    names = ("case_id", "gpu", "gpu_total_bytes", "record", "status", "phase", "peak_allocated_bytes")
    for case_id, gpu, total, record, status, phase, peak in zip(
        *(dry_runs[name].tolist() for name in names), strict=True
    ):
        if status != "ok" or not isinstance(peak, int) or not isinstance(phase, str):
            continue
        key = _key(case_id, gpu, total)
        if key not in last or last[key][0] != record:
            last[key] = (record, {})
        last[key][1][phase] = peak
    return {key: {**phases, PEAK: max(phases.values())} for key, (_, phases) in last.items()}


def _key(case_id: str, gpu: Any, total_bytes: Any) -> _Key:
    """A case on a GPU, by the table's name for it: a driver's total differs by some MiB from another's."""
    if not isinstance(gpu, str):
        return case_id, ""
    return case_id, file_name(gpu, total_bytes if isinstance(total_bytes, int) else None)
