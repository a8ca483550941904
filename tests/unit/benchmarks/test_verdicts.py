"""Verdicts are computed: spelled out for the claims that matter, and another constant or measurement changes them."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import shipped, verdicts
from nooom.benchmarks.claim_checks import CHECKS, shapes
from nooom.benchmarks.claim_checks.evidence import Evidence
from nooom.benchmarks.claim_checks.words import WORDS, fitting, group, judged, off_by
from nooom.benchmarks.verdicts import Verdict, as_markdown, counts
from nooom.formulas.claims import Claim, claims, parse
from nooom.formulas.constants import ARTICLE
from nooom.formulas.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]


@functools.cache
def shipped_verdicts() -> dict[str, Verdict]:
    return {verdict.claim.id: verdict for verdict in verdicts.verdicts()}


def word(claim_id: str, evidence: Evidence | None = None) -> str:
    """The word that one claim gets now."""
    of = [claim for claim in claims() if claim.id == claim_id]
    return verdicts.verdicts(evidence, of)[0].word


def made(claimed: float | tuple[float, float], unit: str = "x") -> Claim:
    return Claim(id="c", line=1, section="s", kind="number", says="x", check="width", claimed=claimed, unit=unit)


@pytest.mark.parametrize(
    ("claim", "expected", "found"),
    [
        ("qwen-7b-inference", "unit mix", 48.3597),  # 14 + 32 = 46
        ("lora-7b-total", "unit mix", 22.5899),  # ~22
        ("grpo-generation-peak", "unit mix", 31.1799),  # ~30
        ("comparison-lora-activations-72b", "off by 1.2x", 186.95),  # ~160, by its own formula
        ("comparison-lora-activations-7b", "off by 1.2x", 26.7046),  # ~22, measured
        ("comparison-full-72b", "holds", 1.152),
        ("qwen-7b-kv", "wrong shape", 3.5),  # 32
        ("grpo-activations", "wrong shape", 12.25),  # 16
        ("kv-72b", "wrong shape", 5),  # 40
        ("kv-7b", "holds", 8),
        ("qwen-7b-parameters", "roughly", 15.2312),  # 14
        ("megatron-quote", "misquoted", 2),
        ("verl-72b", "misquoted", 176),
        ("verl-7b-maximum", "off by 6.2x", 100),  # 16
        ("verl-32b-maximum", "roughly", 176),  # 180
        ("tldr-16p", "recipe-dependent", 10.0025),
        ("adam-12", "recipe-dependent", 4.00247),
        ("activations-by-sequence", "recipe-dependent", 3.40351),
        ("activations-by-batch", "holds", 1.99982),
        ("checkpointed-formula", "off by 1.4x", 1.40145),
        ("checkpointing-default", "recipe-dependent", 0.6),
        ("checkpointing-5-10x", "recipe-dependent", 57),
        ("recompute-30-percent", "recipe-dependent", 45.35),
        ("int4-quarters", "roughly", 3.49596),
        ("lora-share", "recipe-dependent", 2.12039),
        ("table-32b-gpus", "off by 1.2x", None),
        ("full-7b-needs-more", "recipe-dependent", None),
        ("zero-3-communication", "not tested", None),
    ],
)
def test_the_claims_that_matter(claim: str, expected: str, found: float | None) -> None:
    verdict = shipped_verdicts()[claim]
    assert verdict.word == expected
    assert verdict.to_json()["found"] == (None if found is None else pytest.approx(found, rel=1e-5))


def test_every_claim_has_a_known_check_a_known_word_and_a_reason() -> None:
    assert {claim.check for claim in claims()} == set(CHECKS)
    for verdict in shipped_verdicts().values():
        assert group(verdict.word) in WORDS, verdict.claim.id
        assert verdict.why.endswith("."), verdict.claim.id
        assert "\n" not in verdict.why
        assert verdict.broken == (group(verdict.word) in ("off by", "wrong shape", "unit mix", "misquoted"))


def test_the_words_are_about_the_figure_that_is_shown() -> None:
    for verdict in shipped_verdicts().values():
        claimed = verdict.claim.claimed
        if isinstance(claimed, float) and verdict.found and verdict.word.startswith("off by"):
            assert verdict.word == off_by(claimed, verdict.found), verdict.claim.id


def test_as_json_it_has_the_promised_keys_and_is_json() -> None:
    for verdict in shipped_verdicts().values():
        document = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
        assert {"id", "line", "kind", "says", "verdict", "claimed", "found", "unit", "why", "evidence"} <= set(document)


# --- what the words mean -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claimed", "found", "expected"),
    [
        (10.0, 10.05, "holds"),
        (10.0, 11.0, "roughly"),
        (10.0, 5.0, "off by 2.0x"),
        (10.0, 18.0, "off by 1.8x"),
        (10.0, 120.0, "off by 12x"),
        (10.0, [10.0, 10.0], "holds"),
        (10.0, [9.5, 11.0], "roughly"),
        (10.0, [10.0, 20.0], "recipe-dependent"),
        (10.0, [5.0, 20.0], "recipe-dependent"),
        (10.0, [15.0, 20.0], "off by 1.5x"),
        ((5.0, 10.0), [6.0, 9.0], "holds"),
        ((5.0, 10.0), [6.0, 11.0], "roughly"),
        ((5.0, 10.0), [2.0, 57.0], "recipe-dependent"),
        ((5.0, 10.0), [6.0, 57.0], "recipe-dependent"),
        ((5.0, 10.0), [20.0, 57.0], "off by 2.0x"),
    ],
)
def test_one_figure_or_several_recipes_make_a_word(claimed: Any, found: Any, expected: str) -> None:
    assert judged(made(claimed), found)[0] == expected


def test_rounding_explains_a_printed_size_and_nothing_else() -> None:
    assert judged(made(4.0, "GB"), 3.6)[0] == "holds"
    assert judged(made(4.0), 3.6)[0] == "roughly"


@pytest.mark.parametrize(
    ("needs", "fits", "expected"),
    [
        ((50, 60), True, "holds"),
        ((50, 60), False, "off by 1.7x"),
        ((90, 95), False, "roughly"),
        ((50, 160), True, "recipe-dependent"),
        ((200, 300), True, "off by 2.0x"),
    ],
)
def test_whether_it_fits(needs: tuple[int, int], fits: bool, expected: str) -> None:
    assert fitting(dict(zip("ab", needs, strict=True)), 100, fits) == expected


# --- they are computed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constant", "value", "claim", "expected"),
    [
        ("bf16_bytes", 4, "bf16-7b", "off by 2.0x"),
        ("megatron_linear", 17, "megatron-quote", "misquoted"),
        ("kv_values", 4, "kv-7b", "off by 2.0x"),
        ("full_fine_tuning", 10, "full-7b-static", "off by 1.6x"),
        ("simplified_parameters", 4, "qwen-7b-inference", "off by 1.4x"),
        ("checkpointed_values", 2.803, "checkpointed-formula", "holds"),
        ("adam_master_bytes", 0, "adam-7b", "off by 1.5x"),
    ],
)
def test_another_constant_is_another_verdict(
    monkeypatch: pytest.MonkeyPatch, constant: str, value: float, claim: str, expected: str
) -> None:
    monkeypatch.setitem(ARTICLE, constant, value)
    assert word(claim) == expected


@pytest.mark.parametrize(
    "constant", [name for name in ARTICLE if not name.startswith(("lora_share", "checkpointing_"))]
)
def test_every_constant_of_a_formula_stands_under_some_verdict(monkeypatch: pytest.MonkeyPatch, constant: str) -> None:
    before = [(verdict.word, verdict.found) for verdict in shipped_verdicts().values()]
    monkeypatch.setitem(ARTICLE, constant, 3 * ARTICLE[constant])
    assert [(verdict.word, verdict.found) for verdict in verdicts.verdicts()] != before


def test_without_the_second_factor_the_quote_would_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARTICLE, "megatron_linear", 17)
    monkeypatch.setitem(ARTICLE, "megatron_attention", 2.5)
    assert word("megatron-quote") == "holds"


def test_another_shape_is_another_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = shapes.real("meta-llama/Llama-2-7b-hf")
    monkeypatch.setattr("nooom.benchmarks.claim_checks.numbers.real", lambda _: llama)
    assert word("qwen-7b-kv") == "holds"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A copy of the evidence that a test may change."""
    for folder in ("measured/public", "demo", "claims"):
        shutil.copytree(shipped.RESULTS / folder, tmp_path / folder)
    return tmp_path


def with_record(results: Path, published: str, **figures: int) -> Evidence:
    """The evidence with other figures in one published record's last phase."""
    journal = results / "measured" / "public" / "measurements.jsonl"
    records = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    for record in records:
        if published in record["fingerprint"]["published"]:
            record["phases"][-1] |= figures
    journal.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return Evidence(results)


def test_another_measurement_is_another_verdict(results: Path) -> None:
    assert word("comparison-lora-activations-7b", Evidence(results)) == "off by 1.2x"
    evidence = with_record(results, "M1184", peak_allocated_bytes=22_100_000_000)
    assert word("comparison-lora-activations-7b", evidence) == "holds"


def test_states_in_fp32_would_make_the_moments_hold(results: Path) -> None:
    parameters = shapes.real("mistralai/Mistral-7B-v0.1").parameters
    with_record(results, "M1176", end_allocated_bytes=10 * parameters)
    evidence = with_record(results, "M1179", end_allocated_bytes=10 * parameters)
    assert word("adam-moment", evidence) == "holds"
    assert word("adam-12", evidence) == "recipe-dependent"  # the master copy is still a recipe


def test_every_published_figure_that_a_claim_names_is_needed(results: Path) -> None:
    named = {
        value
        for claim in claims()
        for key, told in claim.parameters.items()
        for value in (told if isinstance(told, list) else [told])
        if key in ("record", "records", "nf4_records", "with", "without")
    }
    assert named >= {"M1176", "M1184", "M1212", "M0458", "M0197"}
    shutil.rmtree(results / "measured")
    untested = " ".join(v.why for v in verdicts.verdicts(Evidence(results)) if v.word == "not tested")
    for claim in claims():
        if named & {
            str(value) for told in claim.parameters.values() for value in (told if isinstance(told, list) else [told])
        }:
            assert word(claim.id, Evidence(results)) == "not tested", claim.id
    assert "is not in results/measured/public." in untested


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ({"a": True, "b": True}, "holds"),
        ({"a": True, "b": False}, "recipe-dependent"),
        ({"a": False}, "off by over 1000x"),
    ],
)
def test_the_recorded_defaults_decide(results: Path, on: dict[str, bool], expected: str) -> None:
    rows = [{"framework": name, "on": value, "where": "there"} for name, value in on.items()]
    (results / "claims" / "defaults.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    assert word("checkpointing-default", Evidence(results)) == expected


def test_a_default_that_changed_between_versions_is_version_dependent(results: Path) -> None:
    rows = [{"framework": "a", "on": on, "where": "there"} for on in (True, False)]
    (results / "claims" / "defaults.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    assert word("checkpointing-default", Evidence(results)) == "version-dependent"


def test_the_recorded_operations_decide(results: Path) -> None:
    rows = [{"workload": "sft", "checkpointing": "reentrant", "extra": 0.301}]
    (results / "claims" / "flops.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    assert word("recompute-30-percent", Evidence(results)) == "holds"


def test_other_facts_of_verl_are_another_verdict() -> None:
    facts = dict(Evidence().facts)
    facts["verl"] = {**facts["verl"], "method": "full fine-tuning"}
    assert word("verl-72b", Evidence(facts=facts)) == "holds"
    assert word("verl-7b", Evidence(facts=facts)) == "misquoted"


# --- evidence that is missing --------------------------------------------------------------------------------------


def test_without_results_what_needs_them_is_not_tested_and_says_why(tmp_path: Path) -> None:
    found = {verdict.claim.id: verdict for verdict in verdicts.verdicts(Evidence(tmp_path / "nothing"))}
    assert len(found) == len(claims())
    assert found["tldr-16p"].word == "not tested"
    assert found["tldr-16p"].why == "The published measurement M1176 is not in results/measured/public."
    assert found["recompute-30-percent"].why == "results/claims/flops.json is missing (make claims-evidence)."
    assert found["phases-apart"].word == found["checkpointing-5-10x"].word == "not tested"
    assert found["qwen-7b-inference"].word == "unit mix"  # arithmetic needs none


@pytest.mark.parametrize(("text", "why"), [("{", "is not JSON"), ("[]", "has no rows"), ('{"rows": 3}', "has no rows")])
def test_a_damaged_file_of_counts_is_not_tested_either(results: Path, text: str, why: str) -> None:
    (results / "claims" / "flops.json").write_text(text, encoding="utf-8")
    of = [claim for claim in claims() if claim.check == "recompute"]
    assert why in verdicts.verdicts(Evidence(results), of)[0].why


def test_an_unknown_check_is_refused() -> None:
    entry = 'lines = 3\n[[claim]]\nid = "a"\nline = 1\nsection = "s"\nkind = "number"\nsays = "x"\ncheck = "widht"'
    with pytest.raises(UsageError, match="claim a: check 'widht' is unknown; did you mean width"):
        verdicts.verdicts(of=parse(entry, "f"))


# --- the page, and how long it takes -------------------------------------------------------------------------------


def test_the_page_is_what_the_evidence_gives() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert page == as_markdown(list(shipped_verdicts().values())), "make claims"


def test_the_page_counts_every_claim() -> None:
    found = list(shipped_verdicts().values())
    assert sum(counts(found).values()) == len(found)
    assert as_markdown(found).count("\n| ") >= len(found)


@pytest.mark.alone
def test_it_takes_less_than_a_second_and_neither_torch_nor_pandas(patience: Callable[[], float]) -> None:
    code = (
        "import sys, time; begin = time.perf_counter()\n"
        "from nooom.benchmarks.verdicts import verdicts\n"
        "verdicts(); print(time.perf_counter() - begin)\n"
        "print(*({'torch', 'pandas', 'numpy', 'transformers'} & set(sys.modules)))"
    )

    def seconds() -> float:
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
        taken, heavy = run.stdout.split("\n")[:2]
        assert heavy == ""
        return float(taken)

    assert any(seconds() < patience() for _ in range(4))


def test_the_commands_refuse_what_is_no_path() -> None:
    from nooom.benchmarks import defaults, flops

    for main in (verdicts.main, flops.main, defaults.main):
        with pytest.raises(UsageError, match="one argument is right"):
            main([])


def test_a_pair_of_runs_that_differs_in_something_else_is_no_evidence_of_doubling() -> None:
    claim = next(claim for claim in claims() if claim.id == "activations-by-batch")
    other = dataclasses.replace(claim, parameters={**claim.parameters, "by": "seq"})
    with pytest.raises(UsageError, match=r"M1184 and M1187 differ in \['batch'\], not in seq alone"):
        verdicts.verdicts(of=[other])
