"""Scores by hand: errors of the peaks, PEF and MCP on a GPU of known size."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nooom.benchmarks.compare import Row
from nooom.benchmarks.scores import score, usable_bytes
from nooom.formulas.gpus import GPUS

A100 = GPUS["a100-80gb"]
GIB = 1 << 30


def row(measured: int | None, predicted: int | None, **change: Any) -> Row:
    facts: dict[str, Any] = dict(case_id="c", label="c", workload="sft", status="ok", device="cuda", source="measured")
    facts |= dict(phase="peak", gpu="NVIDIA A100-SXM4-80GB", gpu_total_bytes=A100.total_bytes)
    said = {} if predicted is None else {"x": predicted}
    return Row(measured_bytes=measured, predicted_bytes=said, **(facts | change))


def test_errors_by_hand() -> None:
    found = score([row(100, 110), row(100, 80), row(100, 100), row(100, None)], "x")
    assert found.n == 3
    assert found.median_abs_error == pytest.approx(0.1)
    assert found.p95_abs_error == pytest.approx(0.1 + 0.9 * 0.1)  # place 1.9 of 0, 0.1, 0.2
    assert found.worst_error == pytest.approx(-0.2)
    assert found.under_predicted == pytest.approx(1 / 3)


def test_only_peaks_count() -> None:
    assert score([row(100, 50, phase="load"), row(100, 100)], "x").n == 1


def test_a_source_that_says_nothing_has_no_score() -> None:
    found = score([row(100, None)], "x")
    assert found.n == 0
    assert set(found.to_json().values()) == {0, None}


@pytest.mark.parametrize(
    ("measured", "predicted", "status", "fails", "conserved"),
    [
        (20 * GIB, 30 * GIB, "ok", False, "what the estimate leaves"),
        (20 * GIB, 19 * GIB, "ok", True, "minus the estimate"),  # the cap is too low: the run fails
        (20 * GIB, 90 * GIB, "ok", True, "nothing"),  # it would have fitted, and is never launched
        (None, 90 * GIB, "oom", False, "nothing"),
        (None, 30 * GIB, "oom", True, "minus the estimate"),
    ],
)
def test_pef_and_mcp_on_an_a100(measured: int | None, predicted: int, status: str, fails: bool, conserved: str) -> None:
    found = score([row(measured, predicted, status=status)], "x")
    assert found.pef == float(fails)
    usable = A100.total_bytes - (A100.context_bytes or 0)
    expected = {"what the estimate leaves": usable - predicted, "minus the estimate": -predicted, "nothing": 0}
    assert found.mcp == expected[conserved]


def test_where_no_memory_is_known_pef_judges_the_cap_alone_and_mcp_is_unknown() -> None:
    found = score([row(100, 90, gpu=None, gpu_total_bytes=None), row(100, 110, gpu=None, gpu_total_bytes=None)], "x")
    assert (found.pef, found.mcp) == (0.5, None)


def test_a_published_name_without_a_size_takes_the_size_from_the_table() -> None:
    assert usable_bytes(row(1, 1, gpu="A100-80GB", gpu_total_bytes=None)) == A100.usable_bytes
    assert usable_bytes(row(1, 1, gpu="Someone's Accelerator", gpu_total_bytes=None)) is None


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(0, 1 << 40)), min_size=1, max_size=30))
def test_the_worst_bounds_p95_bounds_the_median(pairs: list[tuple[int, int]]) -> None:
    found = score([row(measured, predicted) for measured, predicted in pairs], "x")
    assert found.median_abs_error is not None
    assert found.p95_abs_error is not None
    assert found.worst_error is not None
    assert found.median_abs_error <= found.p95_abs_error * (1 + 1e-12)
    assert found.p95_abs_error <= abs(found.worst_error) * (1 + 1e-12)
    assert math.isfinite(found.worst_error)
