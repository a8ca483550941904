"""Cases run in an environment of their own: what a requirements file names, over the environment that runs this.

The environment is a layer.  Its packages come first, and what it lacks, torch above all, is found in the environment
below, so a file names only what differs (``transformers==4.48.3``) and nothing is downloaded twice.  Layers are kept
among the user's caches, by everything that went into them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.benchmarks.journal import FILE_NAME, read
from nooom.benchmarks.suites.suite import as_toml
from nooom.formulas.case import Case
from nooom.formulas.errors import CannotMeasureError, NooomError, UsageError
from nooom.profiler.cache import cache
from nooom.profiler.child import search_path
from nooom.profiler.measurement import Measurement

_STAMP = "nooom-complete"
"""Written last: a layer without it was cut short."""
_LAYERED = "zz_nooom_below.pth"
"""Names the environment below; read last, for whatever else the layer adds to its path comes before it."""
_PIP = ("install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-r")
_PIP_ELSEWHERE = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")
"""They would put the packages somewhere else; how pip finds packages is the user's affair."""
_SHOWN = ("Collecting ", "Downloading ", "Building ", "Installing ")
_NO_NETWORK = ("Retrying (Retry(", "Max retries exceeded", "Temporary failure in name resolution")
_NO_ROOM = ("No space left on device", "Disk quota exceeded")
_TAIL = 400
"""Lines of pip's that are kept, to find its reason in."""
_LONGEST = 300
_MAX_BYTES = 1 << 20
_FAILED = ("crashed", "timeout", "killed")


@dataclass(frozen=True, kw_only=True)
class Run:
    """How cases are run in an environment."""

    device: str
    """As ``--device`` takes it."""
    gpu_flags: Sequence[str] = ()
    """As the command line has them: ``["--gpu", "a100-80gb"]``."""
    timeout_s: float = 1800.0
    """Of one case's process."""
    attribute: bool = False
    """Run each case once more, to say what its peaks are made of."""
    trust_remote_code: bool = False
    name: str = "that environment"
    """What messages call it."""


def prepared(requirements: Path, *, say: Callable[[str], None] | None = None) -> Path:
    """The Python of a requirements file's environment, made if it isn't there yet.

    What is not pinned is as it was when the environment was made.

    Args:
        requirements: pip's file; what it does not name comes from the environment that runs this.
        say: told what goes on, a line at a time; by default on stderr.

    Raises:
        UsageError: no such file, nothing in it, or what pip can't install; one line with the file and pip's reason.
        CannotMeasureError: no environment can be made here: no venv, no room, no way to the packages.
    """
    say = say or _on_stderr
    _check(requirements)
    folder = cache("environments") / _identity(requirements)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if _is_complete(folder, python):
        return python
    with _alone(folder, say):
        if not _is_complete(folder, python):  # somebody made it while this waited
            say(f"{requirements}: making its environment (once)")
            _make(folder, python, requirements, say)
    return python


def run_in(python: Path, cases: Sequence[Case], run: Run, out: Path) -> list[Measurement]:
    """Run cases as ``nooom run`` does, in the environment of that Python.

    Args:
        python: as :func:`prepared` returns it.
        cases: what is run.
        run: how.
        out: the folder whose journal the measurements are appended to; what the run says comes on stderr.

    Raises:
        NooomError: the run failed as a whole, an import say; the message has the last line that it said.  A case that
            fails is a record like any other.
    """
    journal = out / FILE_NAME
    earlier = sum(1 for _ in read(journal)) if journal.is_file() else 0
    with tempfile.TemporaryDirectory(prefix="nooom-suite-") as work:
        suite = Path(work) / "suite.toml"
        suite.write_bytes(as_toml(cases).encode("utf-8", "replace"))
        command = [str(python), "-P", "-m", "nooom", "run", str(suite), "--device", run.device, *run.gpu_flags]
        command += ["--timeout", f"{run.timeout_s}s", "--out", str(out), "--json"]
        command += ["--attribute"] * run.attribute + ["--trust-remote-code"] * run.trust_remote_code
        # What it says of the suite names a file of ours that nobody knows.
        code, said = _heard(
            command, lambda line: None if line.startswith(str(suite)) else _on_stderr(line), quiet_stdout=True
        )
    found = list(read(journal))[earlier:] if journal.is_file() else []
    if code == 0 or (code == 1 and any(record.status in _FAILED for record in found)):
        return found
    reason = next((line.removeprefix("nooom: ") for line in reversed(said) if line.strip()), f"exit code {code}")
    kind = {UsageError.exit_code: UsageError, CannotMeasureError.exit_code: CannotMeasureError}.get(code, NooomError)
    raise kind(f"in {run.name}: {reason.strip()[:_LONGEST]}")


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check(requirements: Path) -> None:
    """Raises UsageError for what is no requirements file, before anything is made."""
    if requirements.is_dir():
        raise UsageError(f"{requirements}: a folder; --env takes a pip requirements file")
    if requirements.exists() and not requirements.is_file():
        raise UsageError(f"{requirements}: no regular file; it is read more than once, which a pipe can't be")
    if not any(_lines(requirements)):
        raise UsageError(f"{requirements}: names no packages; a line such as transformers==4.48.3 is missing")


def _lines(requirements: Path) -> list[str]:
    """What stands in it, without comments; raises UsageError where it can't be read."""
    try:
        with requirements.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{requirements}: {error.strerror}") from error
    except ValueError as error:
        where = f" (byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        raise UsageError(f"{requirements}: not UTF-8 text{where}") from error
    if len(content) > _MAX_BYTES or "\0" in text:
        raise UsageError(f"{requirements}: not a requirements file")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _identity(requirements: Path) -> str:
    """Of everything that goes in: the file and those it names, the Python, and every package of the layer below."""
    digest = hashlib.sha256(f"{sys.version} {sys.executable} {_below()}\n".encode())
    below = {f"{found.name}=={found.version}" for found in importlib.metadata.distributions()}
    digest.update("\n".join(sorted(below)).encode())
    for part in _parts(requirements, set()):
        digest.update(f"\n{part}".encode())
    return digest.hexdigest()[:16]


def _parts(requirements: Path, seen: set[Path]) -> Iterator[str]:
    """Its lines, those of the files that it includes, and the state of what lies on this machine."""
    seen.add(requirements.resolve())
    for line in _lines(requirements):
        yield line
        included = re.match(r"(?:-r|-c|--requirement|--constraint)[\s=]*(.+)", line)
        if included:
            other = requirements.parent / included[1].strip()
            if other.is_file() and other.resolve() not in seen:
                yield from _parts(other, seen)
            continue
        for word in _words(line):
            with contextlib.suppress(OSError, ValueError):
                yield from _state(Path(word))


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that does not end: pip will say so
        words = line.split()
    return [word.removeprefix("file://") for word in words if "/" in word or word.endswith(".whl") or word == "."]


def _state(path: Path) -> Iterator[str]:
    """By which a package's folder or file is known to be as it was; what a build leaves in it does not count."""
    if path.is_file():
        yield f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}"
    elif path.is_dir():
        for folder, folders, names in os.walk(path):
            left = ("build", "dist", "__pycache__")
            folders[:] = sorted(n for n in folders if n not in left and n[0] != "." and not n.endswith(".egg-info"))
            for name in sorted(names):
                found = Path(folder, name).lstat()
                yield f"{folder}/{name} {found.st_size} {found.st_mtime_ns}"


def _is_complete(folder: Path, python: Path) -> bool:
    return (folder / _STAMP).is_file() and python.exists()


@contextlib.contextmanager
def _alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the environment's lock: who comes second waits for the first."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_suffix(".lock").open("w")
    except OSError as error:
        raise CannotMeasureError(f"can't make an environment in {folder.parent}: {error.strerror}") from error
    with file:
        with contextlib.suppress(ImportError, OSError):  # Windows, or a file system without locks
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another run, which is making {folder}")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, python: Path, requirements: Path, say: Callable[[str], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # half-made, by a run that was killed
    try:
        _lay(folder)
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CannotMeasureError(f"can't make an environment in {folder.parent}: {reason}") from error
    code, said = _heard(
        [str(python), "-P", "-m", "pip", *_PIP, str(requirements)],
        lambda line: say(f"  {line[:160]}") if line.startswith(_SHOWN) else None,
    )
    if code:
        shutil.rmtree(folder, ignore_errors=True)
        reason = f"{requirements}: {_reason(said) or f'pip ended with exit code {code}'}"
        if any(sign in line for line in said for sign in (*_NO_NETWORK, *_NO_ROOM)):
            raise CannotMeasureError(f"{reason}; pip met: {_met(said)}")
        raise UsageError(reason)
    lacking = _lacking(python, requirements)
    if lacking:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(
            f"{requirements}: pip reports no failure and the environment lacks {lacking[:_LONGEST]}; does pip's "
            "configuration (PIP_DRY_RUN, PIP_TARGET, pip.conf) send packages elsewhere?"
        )
    (folder / _STAMP).write_text(f"{requirements}\n", encoding="utf-8")


def _lacking(python: Path, requirements: Path) -> str:
    """What pip would install if it were asked once more, and is not there: nothing, where it did what it was asked."""
    command = [str(python), "-P", "-m", "pip", *_PIP, str(requirements), "--dry-run"]
    _, said = _heard(command, lambda line: None)
    would = "Would install "
    listed = next((line.removeprefix(would).split() for line in said if line.startswith(would)), [])
    if not listed:
        return ""
    # What was built from a folder pip builds each time: it counts as there where that version is.
    code = "import sys, importlib.metadata as m; have = {f'{d.name}-{d.version}'.lower() for d in m.distributions()}; "
    code += "print(*(one for one in sys.argv[1:] if one.lower() not in have))"
    _, there = _heard([str(python), "-P", "-c", code, *listed], lambda line: None)
    return " ".join(there).strip()


def _lay(folder: Path) -> None:
    """An empty environment over the one that runs this."""
    import venv

    # The layer below has pip, as a rule; bringing another one would take most of the time.
    own_pip = importlib.util.find_spec("pip") is None
    venv.EnvBuilder(symlinks=os.name != "nt", with_pip=own_pip).create(folder)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    (site / _LAYERED).write_text("".join(f"{line}\n" for line in _below()), encoding="locale")


def _below() -> list[str]:
    """The environment that runs this, as a layer's .pth file has it."""
    # Python's own folders stay where they are: pip, which builds in isolation, would take them out with the rest.
    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    below = [path for path in search_path() if not _is_pythons_own(path, own)]
    # Folders of packages as such, with the .pth files in them: packages below may be editable installs.
    sites = [path for path in below if Path(path).name in ("site-packages", "dist-packages")]
    return [*below, *(f"import site; site.addsitedir({path!r})" for path in sites)]


def _is_pythons_own(path: str, own: set[str]) -> bool:
    real = os.path.realpath(path)
    return real in own or os.path.basename(real) == "lib-dynload" or real.endswith(".zip")


def _heard(
    command: Sequence[str], say: Callable[[str], None], *, quiet_stdout: bool = False
) -> tuple[int, Sequence[str]]:
    """A command's exit code and the end of what it said; ^C ends it and is raised again."""
    dropped = ("PYTHONPATH", "PYTHONHOME", *_PIP_ELSEWHERE)
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["GIT_TERMINAL_PROMPT"] = "0"  # pip may call git, and nobody answers
    said: deque[str] = deque(maxlen=_TAIL)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet_stdout else subprocess.PIPE,
        stderr=subprocess.PIPE if quiet_stdout else subprocess.STDOUT,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    stream = process.stderr if quiet_stdout else process.stdout
    assert stream is not None
    try:
        for line in stream:
            said.append(line.rstrip())
            say(said[-1])
        return process.wait(), said
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        stream.close()


def _reason(said: Sequence[str]) -> str:
    """The line in which pip says why: of its errors the last one that isn't a pointer to somewhere else."""
    errors = [line.strip() for line in said if re.match(r"\s*(ERROR|error): ", line)]
    telling = [line for line in errors if not re.search(r"ResolutionImpossible|exited with|subprocess-exited", line)]
    chosen = (telling or errors or [line.strip() for line in said if line.strip()] or [""])[-1]
    text = " ".join(re.sub(r"^(ERROR|error): ", "", chosen).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _met(said: Sequence[str]) -> str:
    """Which of the signs that nothing is wrong with the file."""
    room = any(sign in line for line in said for sign in _NO_ROOM)
    return "a full disk" if room else "no answer from where packages come from"
