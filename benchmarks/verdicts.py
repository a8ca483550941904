"""``python -m nooom.benchmarks.verdicts docs/claims.md``: what each claim of the article is worth, as a page.

A verdict is computed, each time, from the article's formulas, the zoo's real shapes, the committed measurements and
counts, and quoted facts: a changed constant or measurement changes it.  Nothing here needs torch or pandas.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks.claim_checks import CHECKS
from nooom.benchmarks.claim_checks.evidence import Evidence, MissingError
from nooom.benchmarks.claim_checks.words import BROKEN, NOT_TESTED, WORDS, group
from nooom.formulas.claims import Claim, claims
from nooom.formulas.errors import NooomError, UsageError, nearest

_MEANING = {
    "holds": "within 1 %, or within the rounding of the figure",
    "roughly": "within 15 %",
    "off by": "by how many times, whichever is larger; of several recipes the nearest",
    "wrong shape": "the figure follows from sizes that the named model doesn't have",
    "unit mix": "the figure only comes out when GB of 10^9 bytes are added to those of 1024^3",
    "misquoted": "the source says something else",
    "recipe-dependent": "right under one ordinary recipe and wrong under another",
    "version-dependent": "right under one version and wrong under another",
    "not tested": "nothing here shows it; why says what is missing",
}

_HEAD = """# The article's claims

Made by `make claims`: every figure and every verdict is computed from the article's formulas, real models' shapes, the
measurements in [`results/`](../results) and quoted sources. The claims stand in
[`formulas/claims.toml`](../formulas/claims.toml), the checks in
[`benchmarks/claim_checks/`](../benchmarks/claim_checks); `nooom validate --claims` shows the same.

"""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A claim and what became of it."""

    claim: Claim
    word: str
    """One of the vocabulary; ``off by`` is followed by how many times."""
    why: str
    found: float | None = None
    """In the claim's unit; None where there is no figure, or none was found."""
    evidence: tuple[str, ...] = ()

    @property
    def broken(self) -> bool:
        """Whether the claim is wrong, as against right, right at times, or unknown."""
        return group(self.word) in BROKEN

    def to_json(self) -> dict[str, Any]:
        """The claim and its verdict as one object."""
        claim = self.claim
        claimed = list(claim.claimed) if isinstance(claim.claimed, tuple) else claim.claimed
        return {
            "id": claim.id,
            "line": claim.line,
            "section": claim.section,
            "kind": claim.kind,
            "says": claim.says,
            "verdict": self.word,
            "broken": self.broken,
            "claimed": claimed,
            "found": None if self.found is None else float(f"{self.found:.6g}"),
            "unit": claim.unit,
            "why": self.why,
            "evidence": list(self.evidence),
        }


def verdicts(evidence: Evidence | None = None, of: Iterable[Claim] | None = None) -> list[Verdict]:
    """The verdict on every claim, in the order of the text.

    Args:
        evidence: None takes what ships in ``results/``.
        of: other claims than the article's.

    Raises:
        UsageError: a claim whose check is unknown, or a file of evidence that is damaged.
    """
    evidence = evidence or Evidence()
    return [_verdict(claim, evidence) for claim in (claims() if of is None else of)]


def _verdict(claim: Claim, evidence: Evidence) -> Verdict:
    check = CHECKS.get(claim.check)
    if check is None:
        raise UsageError(f"claim {claim.id}: check {claim.check!r} is unknown; {nearest(claim.check, CHECKS)}")
    try:
        found = check(claim, evidence)
    except MissingError as missing:
        return Verdict(claim=claim, word=NOT_TESTED, why=str(missing))
    return Verdict(claim=claim, word=found.word, why=found.why, found=found.found, evidence=found.evidence)


def counts(found: Sequence[Verdict]) -> dict[str, int]:
    """How many of each word, in the vocabulary's order; words that no claim got are left out."""
    by_word = Counter(group(verdict.word) for verdict in found)
    return {word: by_word[word] for word in WORDS if by_word[word]}


def as_markdown(found: Sequence[Verdict]) -> str:
    """The page: what the words mean and how many claims got each, then a table for each section."""
    tally = counts(found)
    lines = [
        *_HEAD.splitlines(),
        f"{len(found)} claims, {sum(verdict.broken for verdict in found)} of them broken.",
        "",
        "| verdict | claims | meaning |",
        "|---|--:|---|",
        *(f"| {word} | {tally.get(word, 0)} | {meaning} |" for word, meaning in _MEANING.items()),
    ]
    for section, group_of in itertools.groupby(found, key=lambda verdict: verdict.claim.section):
        lines += ["", f"## {section}", "", "| line | claim | verdict | why |", "|--:|---|---|---|"]
        lines += [
            f"| {verdict.claim.line} | {_cell(verdict.claim.says)} | {_shown(verdict)} | {_cell(verdict.why)} |"
            for verdict in group_of
        ]
    return "\n".join(lines) + "\n"


def _shown(verdict: Verdict) -> str:
    return f"**{verdict.word}**" if verdict.broken else verdict.word


def _cell(text: str) -> str:
    """Text that a table's cell shows as it is."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("_", "\\_").replace("*", "\\*")


def main(arguments: Sequence[str]) -> None:
    """Raises UsageError unless given one path."""
    if len(arguments) != 1:
        raise UsageError("one argument is right: the page to write")
    Path(arguments[0]).write_text(as_markdown(verdicts()), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except NooomError as problem:
        sys.exit(f"verdicts: {problem}")
