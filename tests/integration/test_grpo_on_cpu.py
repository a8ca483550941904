"""Generation makes hundreds of thousands of allocator events: the instrument must not pile them up."""

from __future__ import annotations

from typing import Any

import pytest

from nooom.benchmarks.models.zoo import resolve
from nooom.formulas.case import Case
from nooom.profiler.child import Children, can_fork

SMOL = "HuggingFaceTB/SmolLM2-135M"
NARROW = {"num_hidden_layers": 10, "hidden_size": 36, "head_dim": 4, "intermediate_size": 96}
"""A third of SmolLM2's layers, so of its events, and next to none of its arithmetic."""


@pytest.mark.skipif(not can_fork(), reason="the limit is for a forked child")
@pytest.mark.parametrize(
    ("changes", "events", "limit_bytes"),
    [
        pytest.param(NARROW, 250_000, 5 << 28, id="narrow"),  # 0.7 GiB, and 2.1 where they pile up
        pytest.param({}, 500_000, 3 << 30, id="whole", marks=pytest.mark.slow),
    ],
)
def test_128_new_tokens_take_little_memory_with_the_instrument_on(
    changes: dict[str, Any], events: int, limit_bytes: int
) -> None:
    """The pass with the instrument alone: the pass without it has nothing to pile up.

    Two targets instead of all linear layers: a third of the adapters, still a million events of the whole model.
    """
    settings = {
        "batch": 2,
        "group_size": 2,
        "seq": 16,
        "new_tokens": 128,
        "steps": 1,
        "lora_targets": "q_proj,v_proj",
        "dtype": "fp32",
    }  # bf16 takes minutes without AVX-512
    case = Case.from_dict({"model": SMOL, "workload": "grpo", **settings})
    job = {
        "workload": "nooom.benchmarks.workloads.run:run",
        "instrument": "nooom.profiler.instruments.cpu:CpuInstrument",
        "arguments": {"case": case.to_dict(), "config": {**resolve(SMOL).config, **changes}},
        "threads": 2,
    }
    with Children(["torch", "transformers", "peft"]) as children:
        outcome = children.run(job, timeout_s=400)
    assert outcome.status == "ok", outcome.log
    assert [phase["name"] for phase in outcome.answer["phases"]] == ["load", "rollout", "reference", "update"]
    profiler = outcome.answer["notes"]["profiler"]
    assert profiler["events"] > events
    assert profiler["sessions"] > 2 * 128
    assert profiler["rss_peak_bytes"] < limit_bytes
