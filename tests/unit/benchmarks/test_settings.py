"""Adapters: one thing by the names that releases of transformers have for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from nooom.benchmarks.workloads.settings import dtype_option, kept_logits, vocab_size
from nooom.formulas.errors import UsageError


@pytest.mark.parametrize(
    ("release", "name"),
    [("4.44.2", "torch_dtype"), ("4.55.4", "torch_dtype"), ("4.56.0.dev0", "dtype"), ("5.24.0", "dtype")],
)
def test_the_dtype_is_asked_for_by_the_name_that_the_release_knows(
    monkeypatch: pytest.MonkeyPatch, release: str, name: str
) -> None:
    monkeypatch.setattr(transformers, "__version__", release)
    assert dtype_option("bf16") == {name: torch.bfloat16}


class Now:
    def forward(self, input_ids: Any, logits_to_keep: int = 0, **_: Any) -> None: ...


class Before449:
    def forward(self, input_ids: Any, num_logits_to_keep: int = 0, **_: Any) -> None: ...


class Before445:
    def forward(self, input_ids: Any) -> None: ...


def test_the_last_logits_are_asked_for_by_a_name_that_is_not_silently_ignored() -> None:
    assert kept_logits(Now(), 3) == {"logits_to_keep": 3}
    assert kept_logits(Before449(), 3) == {"num_logits_to_keep": 3}
    assert kept_logits(SimpleNamespace(get_base_model=Before449), 1) == {"num_logits_to_keep": 1}
    assert kept_logits(Before445(), 0) == {}
    with pytest.raises(UsageError, match=r"Before445 of transformers .* computes all logits"):
        kept_logits(Before445(), 1)


def test_what_is_installed_knows_the_names(tiny_config: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(**tiny_config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, **dtype_option("bf16"))
    assert model.dtype == torch.bfloat16
    assert vocab_size(model) == tiny_config["vocab_size"]
    (name,) = kept_logits(model, 2)
    tokens = torch.zeros(1, 8, dtype=torch.long, device="meta")
    assert model(input_ids=tokens, **{name: 2}).logits.shape[1] == 2


def test_a_config_that_has_no_parts_has_the_vocabulary_itself() -> None:
    assert vocab_size(SimpleNamespace(config=SimpleNamespace(vocab_size=7))) == 7
