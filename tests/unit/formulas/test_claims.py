"""The article's claims as data: complete, in order, and refused in one line where they are not."""

from __future__ import annotations

from collections import Counter

import pytest

from nooom.formulas.claims import KINDS, SIZES, claims, parse
from nooom.formulas.constants import ARTICLE
from nooom.formulas.errors import UsageError

ONE = '{id = "a", line = 3, section = "s", kind = "number", says = "x", check = "width"}'


def file(*entries: str, lines: int = 10) -> str:
    return f"lines = {lines}\nclaim = [{', '.join(entries)}]"


def changed(**keys: str) -> str:
    """The one claim with other values, as TOML has them."""
    values = {"id": '"a"', "line": "3", "section": '"s"', "kind": '"number"', "says": '"x"', "check": '"width"'}
    return "{" + ", ".join(f"{key} = {value}" for key, value in (values | keys).items()) + "}"


def test_there_are_at_least_eighty_of_every_kind() -> None:
    kinds = Counter(claim.kind for claim in claims())
    assert kinds.total() >= 80
    assert set(kinds) == set(KINDS)


def test_ids_are_unique_and_lines_rise_within_the_text() -> None:
    found = claims()
    assert len({claim.id for claim in found}) == len(found)
    lines = [claim.line for claim in found]
    assert lines == sorted(lines)
    assert 1 <= lines[0] <= lines[-1] <= 416


def test_a_size_is_compared_at_the_precision_it_is_written_in() -> None:
    rounding = {claim.id: claim.rounding for claim in claims()}
    assert rounding["comparison-full-72b"] == pytest.approx(0.005)  # 1.15 TB
    assert rounding["int4-7b"] == pytest.approx(0.05)  # 3.5 GB
    assert rounding["qwen-7b-inference"] == 0.5  # 46 GB
    assert rounding["adam-12"] == 0  # bytes a parameter are no rounded figure


def test_where_a_claim_is_a_constant_of_the_formulas_both_say_the_same() -> None:
    claimed = {claim.id: claim.claimed for claim in claims()}
    assert claimed["lora-share"] == (100 * ARTICLE["lora_share_low"], 100 * ARTICLE["lora_share_high"])
    assert claimed["checkpointing-5-10x"] == (ARTICLE["checkpointing_low"], ARTICLE["checkpointing_high"])
    assert claimed["tldr-16p"] == ARTICLE["full_fine_tuning"]
    assert claimed["sgd-momentum"] == ARTICLE["sgd_momentum_bytes"]


def test_a_figure_has_a_unit_and_a_range_rises() -> None:
    for claim in claims():
        assert (claim.claimed is None) == (claim.unit is None), claim.id
        if isinstance(claim.claimed, tuple):
            assert claim.claimed[0] < claim.claimed[1], claim.id
    assert {claim.unit for claim in claims()} >= set(SIZES)


def test_a_claim_reads_as_it_is_written() -> None:
    (claim,) = parse(file(changed(claimed="[5, 10]", unit='"x"', **{"with": "{a = 1}"})), "f")
    assert claim.claimed == (5, 10)
    assert claim.parameters == {"a": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lines = ", "f: Invalid value"),
        ("lines = 3", r"f: lines, a number, and \[\[claim\]\] tables are right"),
        (file("1"), "f: claim 1: a table is right"),
        (file(changed(sayz='"x"')), "f: a: key 'sayz' is unknown; did you mean says"),
        (file(changed(says='" "')), "f: a: says is missing; text is right"),
        (file(changed(kind='"numbr"')), "f: a: kind 'numbr' is unknown; did you mean number"),
        (file(changed(line='"3"')), "f: a: line is missing; a number is right"),
        (file(changed(claimed="3")), "f: a: claimed has no unit"),
        (file(changed(claimed='"3"', unit='"x"')), "f: a: claimed must be a number or two"),
        (file(changed(claimed="[]", unit='"x"')), "f: a: claimed must be a number or two"),
        (file(changed(**{"with": "3"})), "f: a: with must be a table"),
        (file(ONE, ONE), "f: a: the id stands there twice"),
        (file(ONE, lines=2), "f: a: line 3 is outside the text; 1 to 2 is right"),
        (file(ONE, changed(id='"b"', line="2")), "f: b: line 2 comes before a's; the text's order is right"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse(text, "f")
    assert "\n" not in str(raised.value)
