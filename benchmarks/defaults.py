"""``python -m nooom.benchmarks.defaults results/claims/defaults.json``: which frameworks checkpoint by default.

What is installed is asked: transformers' TrainingArguments always, TRL's SFTConfig where it is there.  The others are
quoted, with repository, commit and line, from ``claim_checks/facts.toml``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from nooom.benchmarks.claim_checks import recorded
from nooom.benchmarks.claim_checks.evidence import Evidence
from nooom.formulas.errors import NooomError

SCHEMA_VERSION = 1


def rows() -> Iterator[dict[str, Any]]:
    """Each framework, its version, whether checkpointing is on, and where that stands."""
    from transformers import TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        yield _asked("transformers (Trainer)", "transformers", TrainingArguments(output_dir=folder))
        try:
            from trl import SFTConfig
        except ImportError:
            pass
        else:
            yield _asked("TRL (SFTConfig)", "trl", SFTConfig(output_dir=folder))
    for fact in Evidence().facts["checkpointing"]:
        yield {"framework": fact["framework"], "version": fact.get("version"), "on": fact["on"], "where": fact["where"]}


def _asked(framework: str, distribution: str, arguments: Any) -> dict[str, Any]:
    return {
        "framework": framework,
        "version": version(distribution),
        "on": bool(arguments.gradient_checkpointing),
        "where": f"{distribution} {version(distribution)}: {type(arguments).__name__}().gradient_checkpointing",
    }


def document() -> dict[str, Any]:
    """The file's content, with the versions that were asked."""
    found: dict[str, str | None] = {}
    for name in ("transformers", "trl"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {"schema_version": SCHEMA_VERSION, "fingerprint": found, "rows": list(rows())}


def main(arguments: list[str]) -> None:
    """Raises UsageError unless given one path."""
    recorded.write(document, arguments)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except NooomError as problem:
        sys.exit(f"defaults: {problem}")
