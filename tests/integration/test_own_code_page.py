"""docs/own-code.md: what stands there runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nooom.benchmarks.journal import read

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-code.md"


def test_every_snippet_runs_and_leaves_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
    found = [(record.label, record.status, [phase.name for phase in record.phases]) for record in read(tmp_path)]
    assert found == [
        ("one step", "ok", ["block", "backward"]),
        ("step", "ok", ["block", "backward"]),
        ("step (2)", "ok", ["block", "backward"]),
        ("a tiny llama", "ok", ["forward", "backward", "optimizer"]),
    ]
    assert re.search(r"^backward \d+ \d+$", capsys.readouterr().out, re.M)
