"""Environments of requirements files: layers over this one, kept, made once; and cases that run in them."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import environments
from nooom.benchmarks.environments import Run, prepared, run_in
from nooom.benchmarks.journal import Journal
from nooom.benchmarks.suites.suite import load_suite
from nooom.formulas.case import Case
from nooom.formulas.errors import CannotMeasureError, NooomError, UsageError
from nooom.profiler.measurement import Measurement

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "mdurl"
"""A small package that this environment has, in an older version than the test's."""
CASE = Case(model="HuggingFaceTB/SmolLM2-135M", workload="sft", seq=64, batch=2, padding=0.25)


def wheel(folder: Path, version: str = "99.0", requires: str = "") -> Path:
    """A wheel of that package, written by hand: pip takes it without building, and without an index."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{PACKAGE}-{version}-py3-none-any.whl"
    info = f"{PACKAGE}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{PACKAGE}.py", f"VERSION = {version!r}\n")
        file.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", f"{PACKAGE}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, and a pip that finds nothing but what it is given."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    file = tmp_path / "before.txt"
    file.write_text(f"# older\n{wheel(tmp_path / 'wheels')}\n")
    return file


def folders(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "cache" / "nooom" / "environments").iterdir() if path.is_dir())


def said_by(python: Path, code: str, folder: Path) -> Any:
    done = subprocess.run(
        [python, "-P", "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_its_own_packages_come_first_and_the_others_are_those_below(requirements: Path, tmp_path: Path) -> None:
    python = prepared(requirements)
    code = f"""if True:
        import importlib.metadata as m, json, {PACKAGE}, nooom
        print(json.dumps([{PACKAGE}.VERSION, m.version({PACKAGE!r}), m.version("torch"), nooom.__file__]))"""
    import nooom

    expected = ["99.0", "99.0", importlib.metadata.version("torch"), nooom.__file__]
    assert said_by(python, code, tmp_path) == expected
    assert importlib.metadata.version(PACKAGE) != "99.0"  # nothing was installed here


def test_it_is_made_once_and_anew_when_what_it_is_made_of_changes(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(folder: Path, python: Path, *_: object) -> None:
        made.append(folder)
        python.parent.mkdir(parents=True)
        python.write_text("")
        (folder / environments._STAMP).write_text("")

    monkeypatch.setattr(environments, "_make", make)
    assert prepared(requirements) == prepared(requirements)
    copy = tmp_path / "copy.txt"
    copy.write_text(requirements.read_text())
    assert prepared(copy) == prepared(requirements)
    assert len(made) == 1
    wheel(tmp_path / "wheels", requires="torch")  # the same file, built anew
    prepared(requirements)
    assert len(made) == 2
    included = tmp_path / "more.txt"
    included.write_text("one==1\n")
    requirements.write_text("-r more.txt\n-r more.txt\n-r before.txt\n")
    prepared(requirements)
    included.write_text("one==2\n")
    prepared(requirements)
    assert len(made) == 4
    monkeypatch.setattr(importlib.metadata, "distributions", list)  # another environment below
    prepared(requirements)
    assert len(set(made)) == 5


def test_what_a_killed_run_left_half_made_is_made_anew(requirements: Path, tmp_path: Path) -> None:
    python = prepared(requirements)
    (folder,) = folders(tmp_path)
    left = folder / "left"
    left.write_text("")
    (folder / environments._STAMP).unlink()
    assert prepared(requirements) == python
    assert not left.exists()
    assert (folder / environments._STAMP).is_file()


def test_one_run_makes_it_and_the_other_waits(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(folder: Path, python: Path, *_: object) -> None:
        made.append(folder)
        python.parent.mkdir(parents=True)
        python.write_text("")
        (folder / environments._STAMP).write_text("")

    monkeypatch.setattr(environments, "_make", make)
    folder = tmp_path / "cache" / "nooom" / "environments" / environments._identity(requirements)
    folder.parent.mkdir(parents=True)
    said: list[str] = []
    with folder.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = threading.Thread(target=lambda: prepared(requirements, say=said.append))
        second.start()
        deadline = time.monotonic() + 30
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        make(folder, folder / "bin" / "python")
    second.join(timeout=30)
    assert said == [f"waiting for another run, which is making {folder}"]
    assert made == [folder]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("folder", "a folder"),
        (b"", "names no packages"),
        (b"# transformers==4.48.3\n\n   # nothing\n", "names no packages"),
        (b"transformers==4.48.3 \xff\n", "not UTF-8 text (byte 21)"),
        (b"torch\0", "not a requirements file"),
        (b"a==1\n" * 300_000, "not a requirements file"),
    ],
)
def test_what_is_no_requirements_file_is_refused_in_one_line(
    tmp_path: Path, content: bytes | str | None, says: str
) -> None:
    file = tmp_path / "given.txt"
    if content == "folder":
        file.mkdir()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        prepared(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="no regular file"):
        prepared(tmp_path / "pipe")


def test_an_environment_that_pip_only_says_it_made_is_none(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_DRY_RUN", "1")
    with pytest.raises(UsageError, match=f"the environment lacks {PACKAGE}-99.0"):
        prepared(requirements)
    assert folders(tmp_path) == []


def test_pythons_own_folders_are_not_named_below() -> None:
    named = {os.path.realpath(line) for line in environments._below() if not line.startswith("import ")}
    assert os.path.realpath(os.path.dirname(json.__file__)).rpartition("/json")[0] not in named


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("no-such-package==1.2\n", "No matching distribution found for no-such-package==1.2"),
        ("{wheel}\nmdurl==1.0\n", "Cannot install mdurl 99.0"),
        ("two words\n", "Invalid requirement: 'two words'"),
        ("./no-such-folder\n", "no-such-folder"),
        ('"\n', "Invalid requirement"),
    ],
)
def test_what_pip_refuses_is_said_in_one_line_with_its_reason(
    tmp_path: Path, lines: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given.txt"
    file.write_text(lines.format(wheel=wheel(tmp_path / "wheels")))
    with pytest.raises(UsageError) as caught:
        prepared(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert folders(tmp_path) == []
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") < 5


def test_no_way_to_the_packages_is_not_the_files_fault(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [
        "WARNING: Retrying (Retry(total=4)) after connection broken",
        "ERROR: No matching distribution found for a==1",
    ]
    monkeypatch.setattr(environments, "_lay", lambda folder: None)
    monkeypatch.setattr(environments, "_heard", lambda *_, **__: (1, said))
    with pytest.raises(CannotMeasureError, match=r"No matching distribution found for a==1; pip met: no answer"):
        prepared(requirements)
    said[:] = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]
    with pytest.raises(CannotMeasureError, match="a full disk"):
        prepared(requirements)


def record(status: str = "ok") -> Measurement:
    case = CASE.to_dict()
    return Measurement(case_id=CASE.case_id(), case=case, source="measured", device="cpu", status=status)


@pytest.fixture
def fake_python(tmp_path: Path) -> Any:
    """A Python that runs a few lines instead of what it is told to: they know ``arguments`` and ``out``."""

    def write(body: str) -> Path:
        path = tmp_path / "python"
        path.write_text(
            f"#!{sys.executable}\nimport json, os, sys\nsys.path.insert(0, {str(ROOT)!r})\narguments = sys.argv[1:]\n"
            f"out = arguments[arguments.index('--out') + 1]\n{body}\n"
        )
        path.chmod(0o755)
        return path

    return write


def test_cases_are_run_as_a_suite_and_only_their_own_records_come_back(
    fake_python: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "as it was")
    out = tmp_path / "out"
    with Journal(out) as journal:
        journal.append(record("crashed"))
    python = fake_python(f"""
from pathlib import Path
from nooom.benchmarks.journal import Journal
from nooom.benchmarks.suites.suite import load_suite
from nooom.benchmarks.suites.suite import load_suite
from nooom.profiler.measurement import Measurement
cases = load_suite(arguments[4], "cpu").cases
told = {{"arguments": arguments, "case": cases[0].to_dict(), "cases": len(cases), "environment": dict(os.environ)}}
Path({str(tmp_path / "told")!r}).write_text(json.dumps(told))
with Journal(Path(out)) as journal:
    journal.append(Measurement.from_json({record().to_json()!r}))
print("for nobody")
print(f"{{arguments[4]}}: 1 cases", file=sys.stderr)
print("  ok", file=sys.stderr)""")
    run = Run(device="phantom", gpu_flags=["--gpu", "a100-80gb"], timeout_s=90, attribute=True)
    assert run_in(python, [CASE], run, out) == [record()]
    told = json.loads((tmp_path / "told").read_text())
    suite = told["arguments"][4]
    assert told["arguments"] == [
        *("-P", "-m", "nooom", "run", suite, "--device", "phantom", "--gpu", "a100-80gb"),
        *("--timeout", "90s", "--out", str(out), "--json", "--attribute"),
    ]
    assert told["case"] == CASE.to_dict()
    assert told["cases"] == 1
    assert "PYTHONPATH" not in told["environment"]
    assert told["environment"]["PIP_INDEX_URL"] == "as it was"
    assert not Path(suite).exists()
    assert capfd.readouterr() == ("", "  ok\n")


def test_a_case_that_fails_is_a_record(fake_python: Any, tmp_path: Path) -> None:
    python = fake_python(f"""
from pathlib import Path
from nooom.benchmarks.journal import Journal
from nooom.benchmarks.suites.suite import load_suite
from nooom.profiler.measurement import Measurement
with Journal(Path(out)) as journal:
    journal.append(Measurement.from_json({record("crashed").to_json()!r}))
sys.exit(1)""")
    (found,) = run_in(python, [CASE], Run(device="cpu"), tmp_path / "out")
    assert found.status == "crashed"


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (
            "import no_such_module",
            NooomError,
            "in that environment: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("sys.exit('nooom: it went wrong\\n')", NooomError, "in that environment: it went wrong"),
        ("print('nooom: no suite', file=sys.stderr); sys.exit(2)", UsageError, "in that environment: no suite"),
        ("print('nooom: no GPU', file=sys.stderr); sys.exit(3)", CannotMeasureError, "in that environment: no GPU"),
        ("os.kill(os.getpid(), 9)", NooomError, "in that environment: exit code -9"),
    ],
)
def test_a_run_that_fails_as_a_whole_says_its_last_line(
    fake_python: Any, tmp_path: Path, body: str, kind: type[NooomError], says: str
) -> None:
    with pytest.raises(NooomError) as caught:
        run_in(fake_python(body), [CASE], Run(device="cpu"), tmp_path / "out")
    assert type(caught.value) is kind
    assert str(caught.value) == says


def test_the_example_has_two_environments_and_cases_for_who_has_cuda_and_who_has_not() -> None:
    folder = ROOT / "examples" / "library-upgrade"
    for device in ("phantom", "dryrun", "cpu"):
        cases = load_suite(str(folder / "suite.toml"), device).cases
        assert [case.workload for case in cases] == ["sft", "inference"]
    assert environments._lines(folder / "before.txt") != environments._lines(folder / "after.txt")
