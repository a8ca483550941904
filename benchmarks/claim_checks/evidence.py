"""What verdicts are computed from: measurements and counts under ``results/``, and facts quoted from others."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nooom.benchmarks import journal, published, shipped
from nooom.formulas.case import Case
from nooom.formulas.errors import NooomError
from nooom.profiler.measurement import Measurement, Phase

_FACTS = Path(__file__).with_name("facts.toml")


class MissingError(NooomError):
    """What a check needs is not there: its claim is not tested, and the message says why."""


class Evidence:
    """The committed evidence, each file read once, when it is first asked for.

    Args:
        results: the folder that holds ``measured`` (GPUs: published figures and ours), ``demo`` and ``claims``.
        facts: what others wrote; None reads ``facts.toml``.
    """

    def __init__(self, results: Path = shipped.RESULTS, facts: Mapping[str, Any] | None = None) -> None:
        self.results = results
        self._facts = facts

    @functools.cached_property
    def facts(self) -> Mapping[str, Any]:
        if self._facts is not None:
            return self._facts
        return tomllib.loads(_FACTS.read_text(encoding="utf-8"))

    @functools.cached_property
    def _gpu(self) -> list[Measurement]:
        return [record for record in self._journal("measured") if record.source == "measured"]

    @functools.cached_property
    def _demo(self) -> list[Measurement]:
        return self._journal("demo")

    @functools.cached_property
    def _printed(self) -> dict[str, published.Figure]:
        manifest = self.results / "measured" / "public" / published.MANIFEST
        return {figure["id"]: figure for figure in published.figures(manifest)} if manifest.is_file() else {}

    def record(self, name: str) -> Measurement:
        """The published measurement of that id.  Raises MissingError."""
        for found in self._gpu:
            if name in found.fingerprint.get("published", ()):
                return found
        raise MissingError(f"The published measurement {name} is not in results/measured/public.")

    def printed(self, name: str) -> published.Figure:
        """A published figure that no record stands for, as its manifest has it.  Raises MissingError."""
        if name not in self._printed:
            raise MissingError(f"The published figure {name} is not in results/measured/public.")
        return self._printed[name]

    def workload(self, name: str) -> list[Measurement]:
        """What was measured of a workload on GPUs, or where there is nothing, on the CPU.  Raises MissingError."""
        for measured in (self._gpu, self._demo):
            if found := [record for record in measured if record.case["workload"] == name and record.status == "ok"]:
                return found
        raise MissingError(f"There is no measurement of {name} in results/.")

    def demo(self, workload: str, checkpointing: bool) -> Measurement:
        """The demo's run of a workload that trains.  Raises MissingError."""
        for found in self._demo:
            if found.case["workload"] == workload and found.case["checkpointing"] is checkpointing:
                return found
        raise MissingError(f"There is no {workload} in results/demo.")

    def recorded(self, name: str) -> Mapping[str, Any]:
        """A file of results/claims, which a command wrote.  Raises MissingError."""
        file = self.results / "claims" / f"{name}.json"
        try:
            content: Any = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise MissingError(f"results/claims/{name}.json is missing (make claims-evidence).") from error
        except ValueError as error:
            raise MissingError(f"results/claims/{name}.json is not JSON: {error}.") from error
        if not isinstance(content, Mapping) or not isinstance(content.get("rows"), list):
            raise MissingError(f"results/claims/{name}.json has no rows.")
        return content

    def _journal(self, folder: str) -> list[Measurement]:
        path = self.results / folder
        return list(journal.read(path)) if any(path.rglob(journal.FILE_NAME)) else []


def peak(record: Measurement) -> int:
    """Bytes at the largest phase's peak.  Raises MissingError where the run has none."""
    if record.peak_allocated_bytes is None:
        raise MissingError(f"Case {record.case_id} has no peak.")
    return record.peak_allocated_bytes


def held(record: Measurement, phase: str | None = None) -> int:
    """Bytes still allocated when a phase, or the last one, had ended.  Raises MissingError."""
    phases: list[Phase] = [part for part in record.phases if phase in (None, part.name)]
    if not phases or phases[-1].end_allocated_bytes is None:
        raise MissingError(f"Case {record.case_id} does not say what it held in the end.")
    return phases[-1].end_allocated_bytes


def tokens(record: Measurement) -> int:
    """Tokens in a training step."""
    case = Case.from_dict(record.case)
    return case.batch * case.seq


def name(record: Measurement) -> str:
    """The published id, or which case it is."""
    ids = record.fingerprint.get("published")
    return str(ids[0]) if ids else f"case {record.case_id}"
