"""Calibration: known constants come back from noisy measurements, and what the rows can't tell is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nooom.benchmarks.calibration import Fit, Fitted, article_model, fit, scaled_model, untouched
from nooom.benchmarks.compare import Compared
from nooom.benchmarks.models.zoo import resolve_case
from nooom.benchmarks.sources import Prediction, predict_article
from nooom.formulas import article
from nooom.formulas.case import Case
from nooom.formulas.constants import ARTICLE
from nooom.formulas.errors import NooomError

MODELS = ("HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B")


def record(case: Case, measured: Mapping[str, int]) -> Compared:
    _, shape = resolve_case(case)
    return Compared(case=case, shape=shape, place="", facts={"status": "ok"}, measured=measured)


def inference_cases() -> list[Case]:
    flags = [(model, batch, seq) for model in MODELS for batch in (1, 4, 16) for seq in (256, 2048)]
    return [Case(model=model, workload="inference", batch=batch, seq=seq) for model, batch, seq in flags]


def synthetic(cases: Iterable[Case], constants: Mapping[str, float], noise: Sequence[float]) -> list[Compared]:
    """Measurements as the article's formulas with other constants would have them, each off by its share of noise."""
    found = []
    for number, case in enumerate(cases):
        said = article.by_phase(case, resolve_case(case)[1], constants)
        off = 1 + noise[number % len(noise)]
        found.append(record(case, {phase: round(sum(parts.values()) * off) for phase, parts in said.items()}))
    return found


def by_name(fits: Sequence[Fit], phase: str) -> dict[str, Fitted]:
    return {constant.name: constant for one in fits if one.phase == phase for constant in one.constants}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    weights=st.floats(1.0, 4.0),
    cache=st.floats(0.2, 4.0),
    noise=st.lists(st.floats(-0.003, 0.003), min_size=7, max_size=18),
)
def test_known_constants_come_back_from_noisy_measurements(weights: float, cache: float, noise: list[float]) -> None:
    true = {**ARTICLE, "bf16_bytes": weights, "kv_values": cache}
    found = by_name(fit(synthetic(inference_cases(), true, noise), article_model()), "prefill")
    for name in ("bf16_bytes", "kv_values"):
        one = found[name]
        assert one.identified
        assert one.fitted is not None
        assert one.standard_error is not None
        # Weights are most of many rows, the cache of few: noise of up to 0.3 % a row moves it further.
        assert abs(one.fitted - true[name]) < (0.01 * weights if name == "bf16_bytes" else 0.02 * (weights + cache))
        assert one.standard_error < 0.01 * (weights + cache)


def test_without_noise_they_come_back_to_six_digits_and_the_error_is_gone() -> None:
    true = {**ARTICLE, "bf16_bytes": 2.5, "kv_values": 0.75}
    fits = fit(synthetic(inference_cases(), true, [0.0]), article_model())
    found = by_name(fits, "prefill")
    assert found["bf16_bytes"].fitted == pytest.approx(2.5, rel=1e-6)
    assert found["kv_values"].fitted == pytest.approx(0.75, rel=1e-6)
    (prefill,) = [one for one in fits if one.phase == "prefill"]
    assert prefill.n == 18
    assert prefill.median_error_before > 0.1
    assert prefill.median_error_after == pytest.approx(0, abs=1e-6)


def test_a_constant_that_no_row_depends_on_is_not_identified_and_says_so() -> None:
    fits = fit(synthetic(inference_cases(), ARTICLE, [0.0]), article_model())
    unused = {constant.name: constant for constant in untouched(fits, article_model())}
    assert {"adam_moment_bytes", "megatron_linear", "checkpointed_values", "fp32_bytes"} <= set(unused)
    assert not {"bf16_bytes", "kv_values"} & set(unused)
    for constant in unused.values():
        assert (constant.identified, constant.fitted, constant.n) == (False, None, 0)
        assert constant.why == "no row depends on it"


def test_one_model_at_one_length_can_tell_only_what_weights_and_cache_add_up_to() -> None:
    case = inference_cases()[0]
    fits = fit(synthetic([case] * 5, ARTICLE, [0.01, -0.01]), article_model())
    found = by_name(fits, "prefill")
    for name, other in (("bf16_bytes", "kv_values"), ("kv_values", "bf16_bytes")):
        assert not found[name].identified
        assert other in found[name].why
    assert all(constant.fitted is None for constant in found.values())


def test_as_many_constants_as_distinct_rows_are_refused_with_the_count() -> None:
    cases = inference_cases()[:2]
    found = by_name(fit(synthetic(cases * 4, ARTICLE, [0.0]), article_model()), "prefill")
    assert found["bf16_bytes"].why == "2 distinct rows for 2 constants: one more at least is needed"
    assert {constant.fitted for constant in found.values()} == {None}


def test_parallel_columns_are_named_and_their_one_combination_is_fitted() -> None:
    cases = [
        Case(model=model, workload="sft", batch=batch, seq=256, checkpointing=True)
        for model in MODELS
        for batch in (1, 2, 8)
    ]
    true = {**ARTICLE, "adam_moment_bytes": 2.0, "adam_variance_bytes": 2.0, "adam_master_bytes": 0.0}
    found = by_name(fit(synthetic(cases, true, [0.0]), article_model()), "peak")
    (combined,) = [one for name, one in found.items() if " + " in name and "adam_moment_bytes" in name]
    assert combined.identified
    assert combined.article == pytest.approx(16)  # weights 2, gradients 2, states 12
    assert combined.fitted == pytest.approx(8, rel=1e-6)
    moment = found["adam_moment_bytes"]
    assert not moment.identified
    assert moment.why.startswith("collinear with bf16_bytes")
    assert found["checkpointed_values"].fitted == pytest.approx(2, rel=1e-4)


def test_dependent_columns_that_are_not_parallel_are_refused_too() -> None:
    # Three constants in a plane: each row's third component is the sum of the other two.
    def source(case: Case, shape: Any) -> Prediction:
        first, second = 1000 * (case.batch or 1), 10 * case.seq**2
        return Prediction(phases={"prefill": {"a": first, "b": second, "c": first + second}})

    records = [record(case, {"prefill": 10**6 + number}) for number, case in enumerate(inference_cases())]
    found = by_name(fit(records, scaled_model("made-up", source, ["a", "b", "c"])), "prefill")
    assert {one.identified for one in found.values()} == {False}
    assert found["a_scale"].why == "the rows can't tell it from b_scale, c_scale"


def test_anyones_estimator_gets_a_factor_for_each_component() -> None:
    records = synthetic(inference_cases(), {**ARTICLE, "kv_values": 1.0}, [0.0])
    model = scaled_model("article", predict_article, ["parameters", "kv_cache"])
    found = by_name(fit(records, model), "prefill")
    assert found["parameters_scale"].fitted == pytest.approx(1.0, rel=1e-6)
    assert found["kv_cache_scale"].fitted == pytest.approx(0.5, rel=1e-6)


def test_an_estimator_of_one_figure_is_held_against_the_peak() -> None:
    def source(case: Case, shape: Any) -> Prediction:
        return Prediction(phases={"peak": {"parameters": 2 * shape.parameters}})

    records = synthetic(inference_cases(), ARTICLE, [0.0])
    (one,) = fit(records, scaled_model("weights", source, ["parameters"]))
    assert (one.phase, one.n) == ("peak", 18)


def test_a_model_that_is_not_linear_in_its_constants_is_refused() -> None:
    def phases(case: Case, shape: Any, constants: Mapping[str, float]) -> dict[str, dict[str, int]]:
        return {"prefill": {"parameters": round(1e9 * constants["a"] ** 2 + 1e9)}}

    model = dataclasses.replace(article_model(), name="bent", start={"a": 3.0}, phases=phases)
    with pytest.raises(NooomError, match="bent is not linear in its constants"):
        fit(synthetic(inference_cases(), ARTICLE, [0.0]), model)


def test_a_case_that_ran_out_of_memory_is_no_row() -> None:
    (one,) = synthetic(inference_cases()[:1], ARTICLE, [0.0])
    ran_out = dataclasses.replace(one, facts={"status": "oom"})
    assert fit([ran_out], article_model()) == []


def test_relative_errors_are_what_is_squared_so_that_large_cases_do_not_drown_small_ones() -> None:
    def source(case: Case, shape: Any) -> Prediction:
        return Prediction(phases={"prefill": {"parameters": 2 * shape.parameters}})

    cases = [Case(model=model, workload="inference") for model in MODELS]
    off = np.array([1.5, 1.0, 2.0])
    sizes = [2 * resolve_case(case)[1].parameters for case in cases]
    records = [record(case, {"prefill": round(s * o)}) for case, s, o in zip(cases, sizes, off, strict=True)]
    (one,) = by_name(fit(records, scaled_model("weights", source, ["parameters"])), "prefill").values()
    # The minimum of sum((1 - k / off)^2), whatever the sizes.
    assert one.fitted == pytest.approx(np.sum(1 / off) / np.sum(1 / off**2), rel=1e-6)
