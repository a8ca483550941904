"""The estimate of time, shards, and what the campaign's suites hold."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from nooom.benchmarks import cost, devices
from nooom.benchmarks.calibration import article_model, fit
from nooom.benchmarks.compare import Compared
from nooom.benchmarks.models.zoo import resolve_case
from nooom.benchmarks.runner import Planned, plan
from nooom.benchmarks.sharding import shard
from nooom.benchmarks.sources import predict_article
from nooom.benchmarks.suites.suite import load_suite
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import GPUS

BUDGET_S = 9 * 60
SUITES = {"h100": 3, "article": 2}
"""The campaign's suites, and in how many shards of nine minutes each fits."""


@functools.cache
def planned(name: str) -> list[Planned]:
    device = devices.choose("phantom", GPUS["h100-80gb"])
    return plan(load_suite(name, "phantom").cases, device, write_checkpoints=True)


def seconds(item: Planned) -> float:
    return cost.seconds(item.case, item.shape)


def parts(name: str, n: int) -> list[list[Planned]]:
    return [shard(planned(name), f"{k}/{n}", seconds) for k in range(1, n + 1)]


def estimate(**flags: Any) -> float:
    case = Case.from_dict({"model": "Qwen/Qwen2.5-7B", "workload": "lora", **flags})
    return cost.seconds(case, resolve_case(case)[1])


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"seq": 512}, {"seq": 1024}),
        ({"batch": 1}, {"batch": 2}),
        ({}, {"checkpointing": True}),
        ({}, {"dtype": "fp32"}),
        ({}, {"attention": "eager"}),
        ({}, {"workload": "sft"}),
        ({"steps": 1}, {"steps": 2}),
        ({}, {"grad_accumulation": 2}),
        ({"workload": "grpo"}, {"workload": "grpo", "micro_batch": 1}),
        ({"workload": "grpo"}, {"workload": "grpo", "new_tokens": 512}),
        ({"workload": "inference"}, {"workload": "inference", "new_tokens": 8}),
        ({"workload": "inference"}, {"workload": "inference", "pretrained": True}),
    ],
)
def test_more_work_takes_longer(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert estimate(**less) < estimate(**more)


def test_the_estimate_is_slower_than_what_such_a_gpu_reaches() -> None:
    """Qwen2.5-7B, 16,384 tokens a step, checkpointed: 6 passes of 2 x 7.6 x 10^9 operations a token, at 400 TFLOP/s."""
    step = (estimate(batch=8, checkpointing=True, steps=2) - estimate(batch=8, checkpointing=True, steps=1)) / 1
    assert step > 3 * 2 * 7.6e9 * 16_384 / 400e12


def test_times_read_as_people_write_them() -> None:
    assert [cost.said(seconds) for seconds in (7, 59.6, 470)] == ["7s", "1m 00s", "7m 50s"]


def test_each_setting_of_the_allocator_costs_a_server() -> None:
    cases = planned("h100")
    alone = sum(map(seconds, cases))
    assert cost.total(cases) == pytest.approx(alone + 2 * cost.H100.server_s)


@pytest.mark.parametrize("name", SUITES)
def test_every_shard_fits_into_its_budget_and_is_as_long_as_the_others(name: str) -> None:
    times = [cost.total(part) for part in parts(name, SUITES[name])]
    assert max(times) < 0.9 * BUDGET_S
    assert max(times) - min(times) < 60


@pytest.mark.parametrize("name", SUITES)
def test_every_case_is_in_one_shard_in_the_suites_order(name: str) -> None:
    order = [item.case_id for item in planned(name)]
    dealt = [[item.case_id for item in part] for part in parts(name, 3)]
    assert sorted(case_id for ids in dealt for case_id in ids) == sorted(order)
    for ids in dealt:
        assert ids == sorted(ids, key=order.index)


def test_each_shard_begins_with_default_attention_beside_flash() -> None:
    for part in parts("h100", 3):
        default, flash = (item.case.to_dict() for item in part[:2])
        assert (default.pop("attention"), flash.pop("attention")) == ("sdpa", "sdpa-flash")
        assert default == flash


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/99999999999999999999"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard must read K/N"):
        shard(planned("article"), text, seconds)


def test_h100_has_every_workload_model_size_and_flag() -> None:
    cases = [item.case for item in planned("h100")]
    sizes = {item.model.name: item.shape.parameters / 1e9 for item in planned("h100")}
    assert len(cases) >= 120
    assert len(sizes) >= 10
    assert min(sizes.values()) < 0.15
    assert max(sizes.values()) > 32
    for workload in ("inference", "sft", "lora", "grpo"):
        assert sum(case.workload == workload for case in cases) >= 25, workload
        assert sum(case.pretrained and case.workload == workload for case in cases) == (workload != "grpo")
    for flag in ("batch", "seq", "padding", "dtype", "attention", "checkpointing", "optimizer", "lora_rank", "lora_dtype",
                 "group_size", "micro_batch", "logits", "new_tokens", "allocator", "autocast", "reference", "full",
                 "decoding", "grad_accumulation", "lora_dropout"):  # fmt: skip
        assert len({getattr(case, flag) for case in cases} - {None}) >= 2, flag


def test_h100s_cases_are_the_oracles_where_it_has_some() -> None:
    def kept(name: str) -> set[str]:
        return {case.case_id() for case in load_suite(name, "phantom").cases}

    oracle = kept("benchmarks/suites/oracle/h100-80gb.toml")
    assert len(oracle & kept("h100")) > 0.7 * len(oracle)


def test_the_campaigns_suites_never_run_on_a_cpu() -> None:
    for name in SUITES:
        with pytest.raises(UsageError, match=r"no \[\[case\]\] for device cpu"):
            load_suite(name, "cpu")


def test_h100_identifies_every_constant_that_its_flags_can() -> None:
    """On rows that the article's own formulas make: what is refused then, the cases can't tell, whatever is measured."""
    rows = []
    for item in planned("h100"):
        said = predict_article(item.case, item.shape).by_phase()
        measured = {name: size for name, size in said.items() if name != "peak"}
        measured = measured if len(measured) > 1 else {"forward": said["peak"], **measured}
        rows.append(Compared(case=item.case, shape=item.shape, place="", facts={"status": "ok"}, measured=measured))
    told: set[str] = set()
    for one in fit(rows, article_model()):
        refused = {constant.name: constant.why for constant in one.constants if not constant.identified}
        apart = {name: why for name, why in refused.items() if not why.startswith("collinear with ")}
        assert not apart, (one.workload, one.phase, apart)
        told |= {constant.name for constant in one.constants if constant.identified}
    adam = "adam_moment_bytes + adam_variance_bytes + adam_master_bytes"
    assert {"fp32_bytes", "bf16_bytes", "fp16_bytes", "sgd_momentum_bytes", "megatron_linear", "megatron_attention",
            "checkpointed_values", "kv_values", adam} <= told  # fmt: skip
