"""The wheel holds what it should, and works inside a repository whose own modules have our folders' names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("formulas", "profiler", "benchmarks")


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's content and nothing else; the dependencies are this environment's."""
    site = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--no-cache-dir", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "install", *options, "--target", site, wheel)
    return site


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's repository: it has all three names, in ways that break whoever imports them by mistake."""
    folder = tmp_path_factory.mktemp("theirs")
    trap = "raise ImportError('this is not the module you wanted')\n"
    (folder / "profiler.py").write_text(trap)
    (folder / "formulas.py").write_text(trap)
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "__init__.py").write_text(trap)
    return folder


@pytest.fixture
def there(installed: Path, repository: Path) -> dict[str, Any]:
    """Options of a process that stands in their repository and has the wheel installed, but not the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    environment.pop("PYTHONSAFEPATH", None)  # their folder comes first on the path, as it does for users
    return {"cwd": repository, "env": environment}


def test_everything_lies_inside_the_one_import_name(names: set[str]) -> None:
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"nooom"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_every_source_and_data_file_is_in_it(names: set[str]) -> None:
    for folder in ("nooom", *FLOORS):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in {".py", ".json", ".toml", ".c", ".h", ".csv"}:
                inside = path.relative_to(ROOT).as_posix()
                assert (inside if folder == "nooom" else f"nooom/{inside}") in names


def test_the_results_that_commands_show_are_in_it(names: set[str]) -> None:
    for folder in ("measured", "demo", "claims", "calibration"):
        for path in (ROOT / "results" / folder).rglob("*"):
            if path.is_file():
                assert f"nooom/{path.relative_to(ROOT).as_posix()}" in names


def test_the_claims_are_judged_there(there: dict[str, Any]) -> None:
    done = run(sys.executable, "-m", "nooom", "validate", "--claims", "--json", **there)
    claims = {claim["id"]: claim["verdict"] for claim in json.loads(done.stdout)["claims"]}
    here = run(sys.executable, "-m", "nooom", "validate", "--claims", "--json", cwd=ROOT)
    assert claims == {claim["id"]: claim["verdict"] for claim in json.loads(here.stdout)["claims"]}


def test_neither_tests_nor_leavings_are_in_it(names: set[str]) -> None:
    for name in names:
        assert not {"tests", "docs", "build", "__pycache__"} & set(name.split("/")), name


def test_the_source_archive_holds_the_tree(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("nooom", *FLOORS, "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            assert path.relative_to(ROOT).as_posix() in held
    assert {"pyproject.toml", "constraints.txt", "Makefile", "LICENSE", "README.md"} <= held


def test_it_is_imported_from_the_wheel_alone(there: dict[str, Any], installed: Path) -> None:
    """An editable install in this environment puts the checkout on the path as well: nothing may come from there."""
    code = """
import json, sys
import nooom
from nooom.formulas.case import Case
import nooom.profiler.measurement, nooom.benchmarks.cli
Case(model="m", workload="sft")
ours = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "nooom"}
print(json.dumps({"search": list(nooom.__path__), "files": ours, "bare": sorted(set(sys.argv[1:]) & set(sys.modules))}))
"""
    told = json.loads(run(sys.executable, "-c", code, *FLOORS, **there).stdout)
    assert told["search"] == [str(installed / "nooom")]
    assert [name for name, file in told["files"].items() if not Path(file).is_relative_to(installed)] == []
    assert told["bare"] == []


@pytest.mark.parametrize("module", ["nooom", "nooom.benchmarks"])
def test_the_command_says_what_it_does(module: str, there: dict[str, Any]) -> None:
    assert "nooom" in run(sys.executable, "-m", module, "--help", **there).stdout


def test_the_script_and_the_pytest_plugin_are_named_nooom(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entries,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        said = archive.read(entries).decode()
    assert "nooom = nooom.benchmarks.cli:main" in said
    assert "[pytest11]\nnooom = nooom.benchmarks.pytest_plugin" in said


def test_a_case_is_measured_there(there: dict[str, Any], tiny_model: Path, tmp_path: Path) -> None:
    """Through the child process, which gets its search path from its parent."""
    flags = ["--model", tiny_model, "--workload", "sft", "--batch", 1, "--seq", 8, "--device", "cpu"]
    done = run(sys.executable, "-m", "nooom", "run", *flags, "--out", tmp_path / "out", "--json", **there)
    (measurement,) = json.loads(done.stdout)["measurements"]
    assert measurement["status"] == "ok"
