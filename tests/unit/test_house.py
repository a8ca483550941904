"""What the tree as a whole may and may not say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IGNORED = {".git", ".venv", "build", "dist", "nooom-results", "__pycache__"}

# Written in pieces, so that this file does not say them itself.
OUTSIDE = "../" + "shared"
REGISTRIES = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("pytorch", "org/whl"),
            ("npmjs", "org"),
            ("crates", "io"),
            ("anaconda", "org"),
            ("debian", "org"),
        )
    )
)


def tree() -> Iterator[tuple[Path, str]]:
    """Every text file of the tree, committed or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:  # an unpacked archive
        paths = [path for path in ROOT.rglob("*") if not IGNORED & set(path.relative_to(ROOT).parts)]
    for path in paths:
        if path.is_file():
            try:
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_nothing_reaches_out_of_the_tree_but_ci() -> None:
    assert [str(path) for path, text in tree() if OUTSIDE in text and path != Path(".ci/run")] == []


def test_no_registry_is_named_by_its_host() -> None:
    assert [(str(path), found[0]) for path, text in tree() if (found := REGISTRIES.search(text))] == []


def test_the_readme_says_how_to_begin() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("no README.md yet")
    text = readme.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def test_the_commands_that_are_promised_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for name in ("README.md", "CONTRIBUTING.md"):
        if (ROOT / name).exists():
            promised = set(re.findall(r"(?:^    |`)make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8"), re.M))
            assert promised <= targets, (name, promised - targets)
