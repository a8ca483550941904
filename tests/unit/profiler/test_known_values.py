"""Known values beside tensors that hold none: meta tensors here, a phantom GPU's elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from nooom.profiler.known_values import KnownValues, summary  # noqa: E402


@pytest.fixture
def known() -> Iterator[KnownValues]:
    with KnownValues("meta") as values:
        yield values


def on_device(*values: Any) -> Any:
    return torch.tensor(list(values), device="meta")


def test_what_the_host_copied_in_comes_back_as_it_was(known: KnownValues) -> None:
    assert on_device(3, 4).tolist() == [3, 4]
    assert torch.arange(5, device="meta").tolist() == [0, 1, 2, 3, 4]
    assert torch.full((2, 2), 7, device="meta").tolist() == [[7, 7], [7, 7]]
    assert torch.ones(3, dtype=torch.int64).to("meta").sum().item() == 3
    assert not known.invented


def test_what_is_computed_from_known_values_is_known(known: KnownValues) -> None:
    ids = on_device(5, 6, 7)
    assert (ids * 2 + 1).tolist() == [11, 13, 15]
    assert torch.cumsum(ids, 0).tolist() == [5, 11, 18]
    assert torch.cat([ids, ids[:1]]).tolist() == [5, 6, 7, 5]
    assert (ids > 5).tolist() == [False, True, True]
    assert int(ids.max()) == 7
    assert not known.invented


def test_an_all_ones_mask_is_seen_as_all_ones_and_a_padded_one_as_padded(known: KnownValues) -> None:
    mask = torch.ones((2, 8), dtype=torch.long, device="meta")
    assert bool(mask.bool().all())
    mask[0, :3] = 0
    assert not bool(mask.bool().all())
    assert mask.sum(-1).tolist() == [5, 8]


def test_writing_in_place_is_seen_through_every_view(known: KnownValues) -> None:
    ids = torch.zeros(6, dtype=torch.int64, device="meta")
    rows = ids.view(2, 3)
    rows[1].fill_(4)
    ids[0] += 1
    ids.add_(1)
    assert rows.tolist() == [[2, 1, 1], [5, 5, 5]]
    assert ids.tolist() == [2, 1, 1, 5, 5, 5]


def test_as_many_rows_are_found_as_there_are(known: KnownValues) -> None:
    ids = on_device(0, 3, 0, 4)
    assert ids.nonzero().shape == (2, 1)
    assert torch.where(ids > 0)[0].tolist() == [1, 3]
    assert ids[ids > 0].tolist() == [3, 4]
    floats = torch.randn(4, 8, device="meta")
    assert floats[ids > 0].shape == (2, 8)
    assert torch.masked_select(floats, (ids > 0)[:, None]).shape == (16,)


def test_what_nobody_computed_is_invented_and_equals_nothing(known: KnownValues) -> None:
    token = torch.randn(2, 100, device="meta").argmax(-1)
    assert token.tolist() == [0, 0]
    assert not bool((token == 0).any())
    assert bool((token != 0).all())
    assert not bool(torch.isin(token, on_device(0)).any())
    assert sum(known.invented.values()) == 4
    assert all("test_known_values.py" in place for place in known.invented)


def test_generation_goes_on_until_the_length_the_host_knows(known: KnownValues) -> None:
    """The stopping test of transformers' generate, in small."""
    unfinished = torch.ones(2, dtype=torch.long, device="meta")
    ids = torch.ones((2, 4), dtype=torch.long, device="meta")
    steps = 0
    while True:
        token = torch.multinomial(torch.rand(2, 50, device="meta"), 1)
        ids = torch.cat([ids, token], dim=-1)
        steps += 1
        too_long = torch.full((2,), ids.shape[1] >= 9, device="meta", dtype=torch.bool)
        ended = torch.isin(ids[:, -1], on_device(0))
        unfinished = unfinished & ~(too_long | ended)
        if unfinished.max() == 0:
            break
        assert steps < 9
    assert steps == 5


def test_one_invented_part_makes_a_tensor_invented(known: KnownValues) -> None:
    ids = torch.zeros(4, dtype=torch.int64, device="meta")
    ids[1] = torch.randn(3, device="meta").argmax()
    assert not known.is_exact(ids)
    ids.fill_(2)
    assert known.is_exact(ids)
    assert ids.tolist() == [2, 2, 2, 2]


def test_random_integers_are_not_taken_from_the_host(known: KnownValues) -> None:
    state = torch.random.get_rng_state()
    assert not known.is_exact(torch.randint(0, 9, (4,), device="meta"))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_nothing_is_kept_of_floats_and_of_what_is_gone(known: KnownValues) -> None:
    assert known.twin(torch.randn(3, device="meta")) is None
    ids = on_device(1, 2)
    assert known._shadows
    del ids
    assert not known._shadows


def test_tensors_of_the_host_are_left_alone(known: KnownValues) -> None:
    here = torch.tensor([1, 0, 2])
    assert here.nonzero().tolist() == [[0], [2]]
    assert here[here > 0].tolist() == [1, 2]
    assert here.sum().item() == 3


def test_the_record_says_who_asked(known: KnownValues) -> None:
    bool((torch.randn(3, device="meta") > 0).any())
    (line,) = summary(known.invented.most_common())
    assert line["times"] == 1
    assert line["asked_by"].endswith(f"test_known_values.py:{line['asked_by'].rpartition(':')[2]}")


def test_a_mask_made_like_sampled_tokens_is_known_all_the_same(known: KnownValues) -> None:
    tokens = torch.multinomial(torch.rand(2, 50, device="meta"), 4)
    for mask in (torch.ones_like(tokens), tokens.new_ones((2, 4)), torch.full_like(tokens, 1)):
        assert known.is_exact(mask)
        assert bool(mask.all())


def test_what_is_recomputed_in_the_backward_pass_gets_the_same_answers(known: KnownValues) -> None:
    from torch.utils.checkpoint import checkpoint

    mask = torch.ones((2, 8), dtype=torch.bool, device="meta")
    answers = []

    def layer(x: Any) -> Any:
        answers.append(bool(mask.all()))
        return (x * x).sin()  # keeps tensors, so that they are recomputed

    x = torch.randn(2, 8, device="meta", requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert answers == [True, True]
