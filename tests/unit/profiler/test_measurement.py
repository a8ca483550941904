"""The record: written and read back whole; what is no record is refused with the field's name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from nooom.formulas.case import Case
from nooom.profiler.measurement import SCHEMA_VERSION, Measurement, Phase, RecordError, phase_from_json

CASE = Case(model="HuggingFaceTB/SmolLM2-135M", workload="sft", batch=2, seq=64)


def record(**changes: Any) -> Measurement:
    whole: dict[str, Any] = {
        "case_id": CASE.case_id(),
        "case": CASE.to_dict(),
        "source": "measured",
        "device": "cpu",
        "status": "ok",
        "phases": [
            Phase(name="load", peak_allocated_bytes=5),
            Phase(name="forward", peak_allocated_bytes=9, seconds=0.5),
        ],
        "fingerprint": {"torch": "2.13.0"},
    }
    return Measurement(**{**whole, **changes})


def test_a_record_survives_json() -> None:
    made = record(first={"phases": []}, sampling=None, error={"kind": "oom", "tried_bytes": 3})
    assert Measurement.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.peak_allocated_bytes == 9


def test_the_contract_names_are_there_and_unknown_is_null() -> None:
    written = record().to_json()
    assert written["schema_version"] == SCHEMA_VERSION
    assert set(written) >= {"case_id", "case", "source", "device", "status", "weights", "phases", "first", "retries"}
    assert set(written["phases"][0]) == {
        "name",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "peak_active_bytes",
        "peak_requested_bytes",
        "end_allocated_bytes",
        "nvml_peak_bytes",
        "rss_peak_bytes",
        "seconds",
    }
    assert written["phases"][0]["peak_reserved_bytes"] is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema_version": 99}, "schema_version is 99"),
        ({"status": "fine"}, "status is 'fine'"),
        ({"source": "guessed"}, "source is 'guessed'"),
        ({"device": None}, "device is missing"),
        ({"phases": {}}, "phases is not list"),
        ({"phases": [{"name": "load", "peak_allocated_bytes": -1}]}, "peak_allocated_bytes of phase load is '-1'"),
        ({"phases": [{"name": "load", "peak_allocated_bytes": "5"}]}, "is '5', not a non-negative integer"),
        ({"phases": [{"name": "load", "peak_allocated_bytes": 5.0}]}, "is '5.0', not a non-negative integer"),
        ({"phases": [{"name": "load", "peak_bytes": 5}]}, "unknown key 'peak_bytes' in a phase load"),
        ({"phases": [{"name": "load", "seconds": float("inf")}]}, "seconds of phase load is inf"),
        ({"phases": ["load"]}, "a phase is a JSON object"),
        ({"retries": -2}, "retries is '-2'"),
        ({"case": {"model": "x"}}, "--workload is required"),
        ({"fingerprint": []}, "fingerprint is not an object"),
        ({"fingerprint": None}, "fingerprint is not an object"),
        ({"first": {"phases": ["x"]}}, "a phase is a JSON object"),
        ({"phases": [{"name": "load", "peak_allocated_bytes": 1 << 70}]}, "below 2**63"),
        ({"colour": 1}, "unknown key 'colour' in a measurement"),
    ],
)
def test_what_is_no_record_is_refused_by_field(changes: dict[str, Any], says: str) -> None:
    written = {**record().to_json(), **changes}
    with pytest.raises(RecordError) as caught:
        Measurement.from_json(written)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"'])
def test_other_json_is_no_record(text: str) -> None:
    with pytest.raises(RecordError):
        Measurement.from_json(json.loads(text))


@pytest.mark.parametrize(
    ("explanation", "said"),
    [
        ({"components": [1]}, "components of phase load is not an object"),
        ({"components": {"logits": -1}}, "logits among the components of phase load is '-1'"),
        ({"components": {"logits": 1.5}}, "logits among the components"),
        ({"tensors": {}}, "tensors of phase load is not a list"),
        ({"tensors": [1]}, "an item is no object with"),
        ({"hidden": [{"bytes": 1}]}, "an item is no object with"),
        ({"hidden": [dict.fromkeys(("what", "op", "backward", "module", "bytes", "count"))]}, "bytes in hidden"),
    ],
)
def test_what_a_peak_is_made_of_is_checked_like_every_figure(explanation: dict[str, object], said: str) -> None:
    with pytest.raises(RecordError, match=re.escape(said)):
        phase_from_json({"name": "load", **explanation})
