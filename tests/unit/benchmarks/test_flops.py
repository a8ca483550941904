"""What the claims' evidence is made with: operations counted on meta, and defaults asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nooom.benchmarks import defaults, flops, shipped
from nooom.benchmarks.models.zoo import names, resolve
from nooom.formulas.case import Case


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A case of SmolLM2-135M with a tenth of its layers and of its words."""
    folder = tmp_path_factory.mktemp("small")
    changes = {"num_hidden_layers": 3, "vocab_size": 4915}
    config = {**resolve("HuggingFaceTB/SmolLM2-135M").config, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return {"model": str(folder), "batch": 1, "seq": 32, "attention": flops.ATTENTION}


def extra(small: dict[str, Any], reentrant: bool = False, **flags: Any) -> float:
    """The share that checkpointing adds."""
    plain = flops.count(Case.from_dict(small | flags))
    return flops.count(Case.from_dict(small | flags | {"checkpointing": True}), reentrant) / plain - 1


def test_lora_pays_more_of_its_operations_for_recomputing_than_full_fine_tuning(small: dict[str, Any]) -> None:
    full, lora = extra(small, workload="sft"), extra(small, workload="lora", **flops.LORA)
    # At most the forward pass again, a third of everything; less, for the head and each layer's last product are not.
    assert 0.15 < full < 1 / 3
    assert full < lora < 0.5
    # The older way runs the whole layer again.
    assert full < extra(small, reentrant=True, workload="sft") < 1 / 3


def test_twice_the_batch_is_twice_the_operations(small: dict[str, Any]) -> None:
    one, two = (flops.count(Case.from_dict(small | {"workload": "sft", "batch": batch})) for batch in (1, 2))
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
