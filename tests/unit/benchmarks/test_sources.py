"""Who predicts, by the names that ``--by`` takes."""

from __future__ import annotations

import pytest

from nooom.benchmarks.models.zoo import resolve_case
from nooom.benchmarks.sources import Prediction, predict_article, sources, split
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError


def test_phases_that_do_not_overlap_are_never_added() -> None:
    said = Prediction(phases={"load": {"parameters": 5}, "prefill": {"parameters": 5, "kv_cache": 2}})
    assert (said.peak_phase, said.allocated_bytes, dict(said.components)) == (
        "prefill",
        7,
        {"parameters": 5, "kv_cache": 2},
    )
    assert said.by_phase() == {"load": 5, "prefill": 7, "peak": 7}


def test_the_article_gives_the_larger_of_generation_and_training() -> None:
    case = Case(model="Qwen/Qwen2.5-7B", workload="grpo", batch=16, seq=1024, new_tokens=1024, checkpointing=True)
    said = predict_article(case, resolve_case(case)[1])
    assert said is not None
    assert said.allocated_bytes == max(sum(parts.values()) for parts in said.phases.values())


def test_nobody_named_is_the_formula_sets() -> None:
    assert list(sources()) == ["article"]


def test_names_are_taken_once_and_in_order() -> None:
    assert list(sources("article,article")) == ["article"]


@pytest.mark.parametrize(
    ("by", "says"),
    [
        ("artcle", "did you mean article"),
        ("", "unknown"),
        ("article,", "unknown"),
        ("derived", "--by derived is not built yet"),
        ("phantom", "--by phantom runs the case, which is for nooom predict"),
        ("dryrun", "--by dryrun runs the case, which is for nooom predict"),
    ],
)
def test_a_name_that_is_no_source_is_refused(by: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sources(by)


@pytest.mark.parametrize(
    ("by", "run", "rest"),
    [
        (None, (), None),
        ("article", (), "article"),
        ("dryrun", ("dryrun",), None),
        ("phantom,article, dryrun", ("dryrun", "phantom"), "article"),
        ("all", ("dryrun",), "all"),
    ],
)
def test_what_is_run_is_told_from_what_is_computed(by: str | None, run: tuple[str, ...], rest: str | None) -> None:
    assert split(by) == (run, rest)
