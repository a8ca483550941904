"""The house's rule: imports go down only, under one import name, and the ground floor is light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("formulas", "profiler", "benchmarks")
HEAVY = {"torch", "transformers", "peft", "accelerate", "numpy", "pandas", "matplotlib"}
PROFILER_MAY_IMPORT = {"nooom.formulas.case", "nooom.formulas.errors", "nooom.formulas.gpus", "nooom.formulas.hidden"}
IMPORT_NAMES = {"nvidia-ml-py": "pynvml"}
"""Distributions whose import name is another."""
OPTIONAL = {"flash_attn", "bitsandbytes", "trl", "kernels", "torchao"} | {
    *("alloc", "deepspeed", "hf_mem", "hf_vram_calc", "llm_analysis"),  # others' estimators
    "pytest",  # only in the plugin, which nobody but pytest imports: a test of its own
}
"""Looked for where they are used, and done without."""


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def module_of(path: Path) -> str:
    """The name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in FLOORS:
        parts = ("nooom", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it: ``from a.b import c`` gives a.b, and a.b.c if that is a module."""
    package = module_of(path).split(".") if path.name == "__init__.py" else module_of(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inner = [f"{base}.{alias.name}" for alias in node.names if is_ours(f"{base}.{alias.name}")]
            yield from inner if len(inner) == len(node.names) else [base, *inner]


def is_ours(module: str) -> bool:
    """Whether a module of that name stands in the tree."""
    first, *rest = module.split(".")
    if first != "nooom" or not rest:
        return False
    path = (ROOT if rest[0] in FLOORS else ROOT / "nooom").joinpath(*rest)
    return path.is_dir() or path.with_suffix(".py").is_file()


def strings(path: Path) -> Iterator[str]:
    """Every string in a file that is not a docstring: modules are named in strings for child processes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def test_the_ground_floor_imports_only_itself_and_the_standard_library() -> None:
    for path in files("formulas"):
        for module in imports(path):
            assert module.startswith("nooom.formulas") or module.split(".")[0] in sys.stdlib_module_names, (
                path,
                module,
            )


def test_the_profiler_takes_only_the_nouns_from_below_and_nothing_from_above() -> None:
    for path in files("profiler"):
        for module in imports(path):
            if module.startswith("nooom."):
                assert module.startswith("nooom.profiler") or module in PROFILER_MAY_IMPORT, (path, module)
        for text in strings(path):
            assert "nooom.benchmarks" not in text, (path, text)


def test_nothing_is_imported_by_a_bare_name() -> None:
    bare = re.compile(rf"\b(?:import|from) (?:{'|'.join(FLOORS)})\b|^(?:{'|'.join(FLOORS)})\.[a-z_.]+:\w+$")
    for path in files("nooom", *FLOORS, "tests"):
        for module in imports(path):
            assert module.split(".")[0] not in FLOORS, (path, module)
        if path != Path(__file__) and "tests" not in path.parts:
            for text in strings(path):
                assert not bare.search(text), (path, text)


def test_every_third_party_import_is_a_declared_dependency() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {str(re.split(r"[^\w-]", line)[0]) for line in declared}
    allowed = (
        {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}
        | OPTIONAL
        | {"nooom"}
        | set(sys.stdlib_module_names)
    )
    for path in files("nooom", *FLOORS):
        for module in imports(path):
            assert module.split(".")[0] in allowed, (path, module)


def test_only_the_plugin_imports_pytest() -> None:
    for path in files("nooom", *FLOORS):
        if "pytest_plugin" not in path.parts:
            for module in imports(path):
                assert not {"pytest", "pytest_plugin"} & set(module.split(".")), (path, module)


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a statement loads in a fresh interpreter."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("module", ["nooom", *(module_of(path) for path in files("formulas"))])
def test_it_loads_no_heavy_library(module: str) -> None:
    assert not loaded_by(f"import {module}") & HEAVY


def test_the_nouns_of_nooom_load_no_heavy_library() -> None:
    assert not loaded_by("import nooom; nooom.Case, nooom.ModelShape") & HEAVY


def test_the_command_loads_no_heavy_library() -> None:
    assert not loaded_by("import nooom.benchmarks.cli") & HEAVY
