"""Two measurements of one case: which change is growth, what grew, and what else differs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nooom.formulas.case import Case
from nooom.profiler import regression
from nooom.profiler.measurement import Measurement, Phase

MIB = 1 << 20
GIB = 1 << 30
CASE = Case(model="HuggingFaceTB/SmolLM2-135M", workload="sft", seq=128)
GPU = {"name": "NVIDIA A100-SXM4-80GB", "total_bytes": 85_100_068_864}


def record(*phases: Phase, **change: Any) -> Measurement:
    facts: dict[str, Any] = dict(case_id=CASE.case_id(), case=CASE.to_dict(), source="measured", device="cuda")
    facts |= dict(status="ok", gpu=GPU, phases=list(phases), fingerprint={"torch": "2.13.0+cu130"})
    return Measurement(**(facts | change))


def peak(size: int, name: str = "backward", **more: Any) -> Phase:
    return Phase(name=name, peak_allocated_bytes=size, **more)


@pytest.mark.parametrize(
    ("source", "device", "baseline", "band"),
    [
        ("emulated", "phantom", 100 * GIB, 0),
        ("dryrun", "dryrun", 100 * GIB, 0),
        ("measured", "cpu", 1_000_000, 2_000),
        ("measured", "cuda", 1 * GIB, 64 * MIB),
        ("measured", "cuda", 3_200 * MIB, 64 * MIB),
        ("measured", "cuda", 100 * GIB, 2 * GIB),
    ],
)
def test_the_band_is_by_evidence(source: str, device: str, baseline: int, band: int) -> None:
    assert regression.band_bytes(source, device, baseline) == band
    assert regression.band_bytes(source, device, baseline, stored=7) == 7


@pytest.mark.parametrize(
    ("evidence", "before", "after", "state"),
    [
        (dict(source="emulated", device="phantom"), 1000, 1000, "pass"),
        (dict(source="emulated", device="phantom"), 1000, 1001, "regression"),
        (dict(source="emulated", device="phantom"), 1000, 999, "improvement"),
        (dict(source="measured", device="cpu"), 1_000_000, 1_002_000, "pass"),
        (dict(source="measured", device="cpu"), 1_000_000, 1_002_001, "regression"),
        (dict(source="measured", device="cpu"), 1_000_000, 998_000, "pass"),
        (dict(source="measured", device="cpu"), 1_000_000, 997_999, "improvement"),
        (dict(), 1 * GIB, 1 * GIB + 64 * MIB, "pass"),
        (dict(), 1 * GIB, 1 * GIB + 64 * MIB + 1, "regression"),
        (dict(band_bytes=0), 1 * GIB, 1 * GIB + 1, "regression"),
        (dict(band_bytes=GIB), 1 * GIB, 2 * GIB, "pass"),
        (dict(), 0, 64 * MIB, "pass"),
        (dict(), None, 5, "skipped"),
        (dict(), 5, None, "skipped"),
    ],
)
def test_what_is_growth(evidence: dict[str, Any], before: Any, after: Any, state: str) -> None:
    (change,) = regression.changes(record(peak(before), **evidence), record(peak(after), **evidence))
    assert change.state == state
    known = before is not None and after is not None
    assert change.change_bytes == (after - before if known else None)


def test_the_current_sides_band_does_not_count() -> None:
    (change,) = regression.changes(record(peak(GIB)), record(peak(3 * GIB), band_bytes=10 * GIB))
    assert change.state == "regression"


def test_a_phase_that_only_one_side_has() -> None:
    before, after = record(peak(5, "load"), peak(6, "reference")), record(peak(5, "load"), peak(7, "update"))
    states = {change.phase: change.state for change in regression.changes(before, after)}
    assert states == {"load": "pass", "update": "new", "reference": "missing"}


def test_reserved_and_nvml_are_said_and_not_judged() -> None:
    before = record(peak(GIB, peak_reserved_bytes=GIB, nvml_peak_bytes=GIB))
    after = record(peak(GIB, peak_reserved_bytes=9 * GIB, nvml_peak_bytes=9 * GIB))
    (change,) = regression.changes(before, after)
    assert (change.state, change.reserved, change.nvml) == ("pass", (GIB, 9 * GIB), (GIB, 9 * GIB))


def tensor(size: int, count: int = 1, **change: Any) -> dict[str, Any]:
    facts = dict(
        what=None, category="logits", shape=[128, 49152], dtype="float32", module="lm_head", op="aten.mm.default"
    )
    return {**facts, "site": "x.py:1", "bytes": size, "count": count, **change}


def hidden(size: int, **change: Any) -> dict[str, Any]:
    facts = dict(what="cuBLAS workspace", op="aten.mm.default", backward=True, module="lm_head")
    return {**facts, "bytes": size, "count": 1, **change}


def test_what_grew_is_said_largest_first_and_by_name() -> None:
    before = peak(
        100, components={"logits": 60, "activations": 40, "other": 0}, tensors=[tensor(60)], hidden=[hidden(10)]
    )
    after = peak(
        190,
        components={"logits": 120, "activations": 30, "other": 40},
        # The same tensor made at another line, twice now; and one that is new.
        tensors=[tensor(60, 2, site="y.py:7"), tensor(70, op="aten._to_copy.default")],
        hidden=[hidden(42)],
    )
    found = [(one.kind, one.name, one.change_bytes) for one in regression.grown(before, after)]
    assert found == [
        ("component", "logits", 60),
        ("component", "other", 40),
        ("component", "activations", -10),
        ("tensor", "logits float32 [128, 49152] by aten._to_copy.default of lm_head", 70),
        ("tensor", "logits float32 [128, 49152] by aten.mm.default of lm_head", 60),
        ("hidden", "cuBLAS workspace by aten.mm.default of lm_head, backward", 32),
    ]


def test_a_tensor_that_may_have_stood_there_unlisted_is_not_called_new() -> None:
    large, small = tensor(100), tensor(10, op="aten.add.Tensor")
    before = peak(110, components={"logits": 110}, tensors=[large], hidden=[])
    after = peak(120, components={"logits": 120}, tensors=[tensor(100), small], hidden=[])
    assert [one.kind for one in regression.grown(before, after)] == ["component"]


def test_a_tensor_whose_module_has_another_name_now_has_not_grown() -> None:
    before = peak(100, components={"logits": 100}, tensors=[tensor(100, module="Qwen2ForCausalLM.loss")], hidden=[])
    renamed = [tensor(100, module="Qwen2ForCausalLM"), tensor(50, op="aten._to_copy.default")]
    after = peak(150, components={"logits": 150}, tensors=renamed, hidden=[])
    named = [one.name for one in regression.grown(before, after) if one.kind == "tensor"]
    assert named == []  # 50 is less than the least that the other side lists
    larger = [renamed[0], tensor(120, op="aten._to_copy.default")]
    after = peak(220, components={"logits": 220}, tensors=larger, hidden=[])
    named = [one.name for one in regression.grown(before, after) if one.kind == "tensor"]
    assert named == ["logits float32 [128, 49152] by aten._to_copy.default of lm_head"]


def test_nothing_grew_by_name_where_one_side_was_not_taken_apart() -> None:
    assert list(regression.grown(peak(5), peak(9, components={"logits": 9}, tensors=[], hidden=[]))) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(device="phantom", source="emulated"), "evidence measured on cuda -> emulated on phantom"),
        (dict(gpu={"name": "NVIDIA H200", "total_bytes": 1}), "gpu NVIDIA A100-SXM4-80GB -> NVIDIA H200"),
        (dict(fingerprint={"torch": "2.14.0"}), "torch 2.13 -> 2.14"),
        (dict(fingerprint={"torch": None}), "torch 2.13 -> unknown"),
        (
            dict(fingerprint={"torch": "2.13.1", "allocator": "expandable_segments:True"}),
            "allocator none -> expandable_segments:True",
        ),
        (dict(weights="pretrained"), "weights random -> pretrained"),
        (dict(case_id="0123456789abcdef"), f"case version: its id was {CASE.case_id()}, it is 0123456789abcdef"),
    ],
)
def test_hard_identity(change: dict[str, Any], says: str) -> None:
    assert regression.hard_differences(record(), record(**change)) == [says]


def test_what_is_no_hard_difference() -> None:
    old = record(fingerprint={"torch": "2.13.0+cu130", "driver": "580"})
    new = record(fingerprint={"torch": "2.13.1+cu132", "driver": "590"}, gpu={**GPU, "total_bytes": 85_000_000_000})
    assert regression.hard_differences(old, new) == []


def test_suspects_are_what_else_differs_and_not_what_always_does() -> None:
    old = record(
        fingerprint={"torch": "2.13.0", "transformers": "5.17.0", "wall_s": 3.0, "gpu_uuid": "a", "peft": None}
    )
    new = record(
        fingerprint={"torch": "2.13.0", "transformers": "5.24.0", "wall_s": 4.0, "gpu_uuid": "b", "dirty": True}
    )
    assert regression.suspects(old, new) == ["transformers 5.17.0 -> 5.24.0", "dirty unknown -> True"]
    assert regression.suspects(old, old) == []


def test_components_of_another_peak_are_refused() -> None:
    from nooom.profiler.measurement import RecordError

    good = record(peak(100 * MIB, components={"logits": 99 * MIB, "other": MIB}))
    assert Measurement.from_json(good.to_json()) == good
    bad = dataclasses.replace(good, phases=[peak(100 * MIB, components={"logits": 60 * MIB, "other": MIB})])
    with pytest.raises(
        RecordError, match=r"components of phase backward sum up to 63963136 bytes; its peak is 104857600"
    ):
        Measurement.from_json(bad.to_json())
