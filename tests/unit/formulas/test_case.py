"""Case: defaults per workload, what is refused and in which words, identity."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nooom.formulas.case import FLAGS, WORKLOADS, Case, CaseError, check_built

MODEL = "HuggingFaceTB/SmolLM2-135M"


def test_defaults_are_those_of_the_contract() -> None:
    sft = Case(model=MODEL, workload="sft")
    assert (sft.batch, sft.seq, sft.dtype, sft.autocast, sft.attention) == (1, 2048, "bf16", "none", "sdpa")
    assert (sft.optimizer, sft.checkpointing, sft.grad_accumulation, sft.steps) == ("adamw", False, 1, 2)
    assert sft.new_tokens is None
    assert sft.lora_rank is None
    grpo = Case(model=MODEL, workload="grpo", batch=16)
    assert (grpo.group_size, grpo.micro_batch, grpo.logprob_micro_batch, grpo.new_tokens) == (8, 16, 16, 256)
    assert (grpo.reference, grpo.full, grpo.lora_rank, grpo.lora_targets) == ("shared", False, 16, "all-linear")
    assert Case(model=MODEL, workload="grpo", group_size=4).batch == 4
    assert Case(model=MODEL, workload="grpo", micro_batch=2).logprob_micro_batch == 2
    lora = Case(model=MODEL, workload="lora")
    assert (lora.lora_dropout, lora.lora_dtype) == (0.0, "fp32")
    inference = Case(model=MODEL, workload="inference")
    assert (inference.new_tokens, inference.logits, inference.optimizer) == (0, "last", None)


def test_training_all_weights_takes_its_reference_from_a_copy() -> None:
    full = Case(model=MODEL, workload="grpo", full=True)
    assert (full.reference, full.lora_rank) == ("separate", None)
    with pytest.raises(CaseError, match="adapter to switch off"):
        Case(model=MODEL, workload="grpo", full=True, reference="shared")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"workload": "sftt"}, "did you mean sft"),
        ({"workload": "sft", "new_tokens": 3}, "--new-tokens does not apply to sft; it applies to inference, grpo"),
        ({"workload": "sft", "lora_rank": 8}, "--lora-rank does not apply to sft"),
        ({"workload": "inference", "checkpointing": False}, "--checkpointing does not apply to inference"),
        ({"workload": "lora", "full": True}, "--full does not apply to lora"),
        ({"workload": "grpo", "full": True, "lora_rank": 8}, "--lora-rank does not apply to grpo --full"),
        ({"workload": "sft", "batch": -1}, "--batch must lie between 1 and"),
        ({"workload": "sft", "batch": 0}, "--batch must lie between 1 and"),
        ({"workload": "sft", "batch": 2.5}, "--batch must be an integer"),
        ({"workload": "sft", "batch": True}, "--batch must be a number"),
        ({"workload": "sft", "batch": "4"}, "--batch must be a number"),
        ({"workload": "sft", "seq": float("nan")}, "--seq must be an integer"),
        ({"workload": "sft", "seq": 10**30}, "--seq must lie between"),
        ({"workload": "sft", "batch": 2, "padding": 0.95}, "--padding must lie between 0 and 0.9"),
        ({"workload": "sft", "padding": 0.5}, "--padding needs a --batch of at least 2"),
        ({"workload": "sft", "dtype": "bf61"}, "did you mean bf16"),
        ({"workload": "sft", "dtype": "fp8"}, "fp8 is not built yet"),
        ({"workload": "sft", "attention": "flash_attention_3"}, "flash_attention_3 is not built yet"),
        ({"workload": "sft", "attention": "flash_attention"}, "did you mean flash_attention_2"),
        ({"workload": "sft", "quantization": "nf4"}, "leaves no weights to train"),
        ({"workload": "grpo", "full": True, "quantization": "int8"}, "leaves no weights to train"),
        ({"workload": "lora", "lora_targets": "q_proj,,v_proj"}, "--lora-targets must be"),
        ({"workload": "lora", "lora_dropout": 1.5}, "--lora-dropout must lie between 0 and 1"),
        ({"workload": "grpo", "batch": 12}, "--batch 12 is not a multiple of --group-size 8; the nearest is 8"),
        ({"workload": "grpo", "new_tokens": 0}, "--new-tokens must be at least 1"),
        ({"workload": "grpo", "micro_batch": 9}, "--micro-batch 9 is larger than --batch 8"),
        ({"workload": "sft", "allocator": "expandable_segments"}, "--allocator must read key:value"),
        ({"workload": "sft", "model": ""}, "--model is empty"),
        ({"workload": "sft", "pretrained": "yes"}, "--pretrained must be true or false"),
        ({"workload": None}, "--workload is required"),
    ],
)
def test_what_describes_no_job_is_refused_in_one_line(flags: dict[str, object], says: str) -> None:
    with pytest.raises(CaseError) as caught:
        Case(**{"model": MODEL, **flags})  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_unknown_keys_name_the_nearest() -> None:
    with pytest.raises(CaseError, match="unknown case key 'bacth'; did you mean batch"):
        Case.from_dict({"model": MODEL, "workload": "sft", "bacth": 2})
    with pytest.raises(CaseError, match=r"torch\.compile is not built yet"):
        Case.from_dict({"model": MODEL, "workload": "sft", "compile": True})


def test_identity_is_stable_and_spelled_out_defaults_change_nothing() -> None:
    short = Case(model=MODEL, workload="lora", lora_targets="v_proj,q_proj")
    spelled = Case(model=MODEL, workload="lora", batch=1, seq=2048, lora_targets="q_proj, v_proj", steps=2)
    assert short == spelled
    assert short.case_id() == spelled.case_id() == "a034070c8a390b1a"
    assert short.case_id() != dataclasses.replace(short, batch=2).case_id()
    assert Case(model="/here/x", workload="sft").case_id("config:1") == Case(model="y", workload="sft").case_id(
        "config:1"
    )


def test_labels_show_what_differs_from_the_defaults() -> None:
    case = Case(model=MODEL, workload="grpo", batch=16, seq=64, checkpointing=True, reference="none")
    assert case.label() == "SmolLM2-135M grpo 16x64+256 checkpointing reference=none"


_VALUES = {
    "batch": st.integers(1, 64),
    "seq": st.integers(1, 4096),
    "dtype": st.sampled_from(FLAGS["dtype"].choices),
    "attention": st.sampled_from(FLAGS["attention"].choices),
    "steps": st.integers(1, 5),
}


@given(st.fixed_dictionaries({"workload": st.sampled_from(WORKLOADS)}, optional=_VALUES))
def test_a_case_survives_json(flags: dict[str, object]) -> None:
    if flags["workload"] == "grpo":
        flags["group_size"] = flags.get("batch", 1)
    case = Case(model=MODEL, **flags)  # type: ignore[arg-type]
    assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"workload": "lora", "quantization": "nf4"}, "--quantization nf4 is not built yet; built: none"),
        ({"workload": "sft", "optimizer": "adamw-8bit"}, "--optimizer adamw-8bit is not built yet; built: adamw, "),
    ],
)
def test_what_can_be_predicted_before_any_device_runs_it(flags: dict[str, str], says: str) -> None:
    case = Case(model="m", **flags)  # type: ignore[arg-type]
    with pytest.raises(CaseError, match=says):
        check_built(case)
