"""What the claims' evidence is made with: operations counted on meta, and defaults asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nooom.benchmarks import defaults, flops, shipped
from nooom.benchmarks.models.zoo import names
from nooom.formulas.case import Case

SMALL = {"model": "HuggingFaceTB/SmolLM2-135M", "batch": 1, "seq": 32, "attention": flops.ATTENTION}


def extra(reentrant: bool = False, **flags: Any) -> float:
    """The share that checkpointing adds."""
    plain = flops.count(Case.from_dict(SMALL | flags))
    return flops.count(Case.from_dict(SMALL | flags | {"checkpointing": True}), reentrant) / plain - 1


def test_lora_pays_more_of_its_operations_for_recomputing_than_full_fine_tuning() -> None:
    full, lora = extra(workload="sft"), extra(workload="lora", **flops.LORA)
    # At most the forward pass again, a third of everything; less, for the head and each layer's last product are not.
    assert 0.15 < full < 1 / 3
    assert full < lora < 0.5
    # The older way runs the whole layer again.
    assert full < extra(reentrant=True, workload="sft") < 1 / 3


def test_twice_the_batch_is_twice_the_operations() -> None:
    one, two = (flops.count(Case.from_dict(SMALL | {"workload": "sft", "batch": batch})) for batch in (1, 2))
    assert two == 2 * one


def test_the_committed_counts_say_what_they_were_counted_from() -> None:
    document = json.loads((shipped.RESULTS / "claims" / "flops.json").read_text(encoding="utf-8"))
    assert set(document["fingerprint"]) == {"torch", "transformers", "peft"}
    assert [row["model"] for row in document["rows"]] == [model for model in flops.MODELS for _ in range(4)]
    assert set(flops.MODELS) <= set(names())
    for row in document["rows"]:
        assert row["extra"] == pytest.approx(row["flops_with_checkpointing"] / row["flops"] - 1, abs=1e-4)


def test_defaults_are_asked_for_where_installed_and_quoted_elsewhere() -> None:
    rows = list(defaults.rows())
    assert rows[0]["framework"] == "transformers (Trainer)"
    assert rows[0]["on"] is False
    assert all(row["where"] for row in rows)
    committed = json.loads((shipped.RESULTS / "claims" / "defaults.json").read_text(encoding="utf-8"))
    quoted = {row["framework"]: row["on"] for row in rows}
    assert {row["framework"]: row["on"] for row in committed["rows"]} == quoted
