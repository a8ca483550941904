"""Calibration tables: one value, written as JSON, CSV and Markdown, and shown on a terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from nooom.benchmarks.calibration import COLLINEAR, Fit, Fitted
from nooom.benchmarks.reports.console import console as new_console
from nooom.formulas.errors import UsageError

SCHEMA_VERSION = 1
COLUMNS = ("workload", "phase", "name", "article", "fitted", "standard_error", "low", "high", "n", "residual",
           "identified", "why")  # fmt: skip
"""Of the CSV."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The constants of one source, fitted to the measurements of one GPU and one set of library versions."""

    source: str
    gpu: str
    """The command's name for the GPU, or ``cpu``."""
    evidence: str
    versions: Mapping[str, str | None]
    fits: tuple[Fit, ...]
    untouched: tuple[Fitted, ...]
    """Constants that no row depends on."""
    case_ids: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def constants(self) -> list[Fitted]:
        """Every constant, phase by phase, then those that nothing depends on."""
        return [constant for fit in self.fits for constant in fit.constants] + list(self.untouched)

    @property
    def folder(self) -> Path:
        """Where it lies under the calibration folder: the GPU, then the versions."""
        known = [f"{name}-{version}" for name, version in self.versions.items() if version]
        return Path(_slug(self.gpu)) / _slug("_".join(known) or "versions-unknown")

    @property
    def stem(self) -> str:
        return "constants" if self.source == "article" else f"constants-{_slug(self.source)}"

    def label(self) -> dict[str, Any]:
        return {"source": self.source, "gpu": self.gpu, "evidence": self.evidence, "versions": dict(self.versions)}


def _slug(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "unknown"


def write(table: Table, out: Path) -> list[Path]:
    """Write the three files; returns their paths.  Raises UsageError where nothing can be written."""
    folder = out / table.folder
    made = {".json": as_json(table), ".csv": as_csv(table), ".md": as_markdown(table)}
    paths = [folder / f"{table.stem}{suffix}" for suffix in made]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, made.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out}: can't write {error.filename or folder}: {error.strerror}") from error
    return paths


def as_json(table: Table) -> str:
    """Everything, with where it comes from."""
    document = {
        "schema_version": SCHEMA_VERSION,
        **table.label(),
        "provenance": {"files": list(table.files), "case_ids": list(table.case_ids), "method": _METHOD},
        "fits": [
            {
                "workload": fit.workload,
                "phase": fit.phase,
                "n": fit.n,
                "median_abs_error_before": _short(fit.median_error_before),
                "median_abs_error_after": _short(fit.median_error_after),
            }
            for fit in table.fits
        ],
        "constants": [_shortened(constant) for constant in table.constants],
        "coverage": None,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


_METHOD = (
    "least squares of relative errors, workload by workload and phase by phase; errors after the fit are in sample"
)


def as_csv(table: Table) -> str:
    """One row a constant and phase."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(_shortened(constant) for constant in table.constants)
    return out.getvalue()


def as_markdown(table: Table) -> str:
    """For reading: what was fitted, what could not be and why."""
    versions = ", ".join(f"{name} {version or 'unknown'}" for name, version in table.versions.items())
    lines = [
        f"# {table.source}'s constants, {table.evidence}: {table.gpu}",
        "",
        f"Fitted to {len(table.case_ids)} cases ({', '.join(table.files)}); {versions}.",
        f"{_METHOD[0].upper()}{_METHOD[1:]}.",
    ]
    for fit in table.fits:
        lines += ["", f"## {fit.workload}, {fit.phase}", "", *_errors(fit), "", *_constants(fit.constants, table)]
    if table.untouched:
        lines += ["", "## Not identified: no row depends on them", ""]
        lines.append(", ".join(f"`{constant.name}`" for constant in table.untouched))
    return "\n".join(lines) + "\n"


def _errors(fit: Fit) -> list[str]:
    after = "nothing could be fitted" if fit.median_error_after is None else f"{fit.median_error_after:.2%} after"
    return [f"{fit.n} rows. Median absolute error: {fit.median_error_before:.2%} before, {after}."]


def _constants(constants: Sequence[Fitted], table: Table) -> list[str]:
    lines = [
        f"| constant | {table.source} | fitted | standard error | n | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for one in constants:
        figures = [_figure(one.article), _figure(one.fitted), _figure(one.standard_error), str(one.n)]
        said = "" if one.identified else f"not identified: {one.why}"
        lines.append(f"| `{one.name}` | " + " | ".join(figures) + f" | {said} |")
    return lines


def show(tables: Sequence[Table], written: Sequence[Path]) -> None:
    """Print every table and where the files are."""
    console = new_console()
    for table in tables:
        console.print(
            f"{table.source}, {table.evidence}: {table.gpu}, {table.folder.name}", style="bold", soft_wrap=True
        )
        for fit in table.fits:
            _show_fit(fit, table, console)
        if table.untouched:
            names = ", ".join(constant.name for constant in table.untouched)
            console.print(f"not identified, no row depends on them: {names}", style="dim", soft_wrap=True)
    for path in written:
        console.print(f"written: {path}", style="dim", soft_wrap=True)


def _show_fit(fit: Fit, table: Table, console: Console) -> None:
    """What could be fitted as a table, and a line for each reason why something could not."""
    console.print(f"\n{fit.workload}, {fit.phase}: {_errors(fit)[0]}", soft_wrap=True)
    fitted = [one for one in fit.constants if one.identified]
    if fitted:
        shown = RichTable(box=SIMPLE_HEAD, pad_edge=False)
        shown.add_column("constant", overflow="fold")
        for name in (table.source, "fitted", "std. error"):
            shown.add_column(name, justify="right", overflow="fold")
        for one in fitted:
            shown.add_row(one.name, _figure(one.article), _figure(one.fitted), _figure(one.standard_error))
        console.print(shown)
    for why, names in _refused(fit).items():
        console.print(f"not identified: {', '.join(names)}: {why}", soft_wrap=True)


def _refused(fit: Fit) -> dict[str, list[str]]:
    """The constants that were refused, by the reason; those of a combination are named by it."""
    found: dict[str, list[str]] = {}
    for one in fit.constants:
        if not one.identified and not one.why.startswith(COLLINEAR):
            found.setdefault(one.why, []).append(one.name)
    return found


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _short(value: float | None) -> float | None:
    """Six digits: what another machine's linear algebra prints too."""
    return None if value is None else float(f"{value:.6g}")


def _shortened(constant: Fitted) -> dict[str, Any]:
    figures = ("fitted", "standard_error", "residual")
    return {key: _short(value) if key in figures else value for key, value in constant.to_json().items()}
