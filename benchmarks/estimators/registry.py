"""Where estimators are found, and how one is asked without trusting what it does or says.

Whatever goes wrong in somebody else's code ends as one line that names it.  Knowing the names imports nothing: the
distributions' entry points are read when they are first asked for, and a package is looked for, not loaded.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError, nearest
from nooom.formulas.shape import ModelShape

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Estimator = Callable[[Case, ModelShape], Mapping[str, int] | None]
"""Components of the case's peak in bytes; None where it says nothing about such a case."""

GROUP = "nooom.estimators"
"""The entry points' group."""

_MAX_NAME = 60
_MAX_BYTES = (1 << 63) - 1
"""What a column of integers holds, and 2**23 TiB."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One of ours, for an estimator that somebody else publishes."""

    distribution: str
    """What pip installs."""
    package: str
    """What Python imports."""
    module: str
    """Ours: its ``estimate`` asks the package's own function, and its ``SAYS`` tells what that counts."""


def _adapter(distribution: str, package: str) -> tuple[str, Adapter]:
    module = f"nooom.benchmarks.estimators.{package}"
    return distribution, Adapter(distribution=distribution, package=package, module=module)


ADAPTERS: Mapping[str, Adapter] = dict(
    (
        _adapter("accelerate", "accelerate"),
        _adapter("alloc", "alloc"),
        _adapter("deepspeed", "deepspeed"),
        _adapter("hf-mem", "hf_mem"),
        _adapter("hf-vram-calc", "hf_vram_calc"),
        _adapter("llm-analysis", "llm_analysis"),
    )
)
"""The adapters that ship, by the distribution's name."""


def names() -> tuple[str, ...]:
    """Every name there is: the adapters', whether or not their package is here, then the entry points'."""
    return (*ADAPTERS, *_entry_points())


def installed() -> tuple[str, ...]:
    """The names whose package is here."""
    entries = _entry_points().items()
    return (
        *(name for name, adapter in ADAPTERS.items() if _is_here(adapter.package)),
        *(name for name, entry in entries if _is_here(entry.module.partition(".")[0])),
    )


def _is_here(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a module in sys.modules that nobody can import, such as __main__
        return False


def _entry_points() -> dict[str, EntryPoint]:
    """The entry points of everything installed, by name.  Adapters keep their names; of two alike the first counts."""
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name not in ADAPTERS and not re.search(r"[\s,:]", entry.name):  # what --by could not name
            found.setdefault(entry.name, entry)
    return found


def find(name: str) -> Estimator:
    """The estimator of a name, or of ``module:function``.

    Raises:
        UsageError: there is none, it can't be imported, or it is no function.
    """
    if ":" in name:
        return _by_path(name)
    if name in ADAPTERS:
        return _adapted(ADAPTERS[name])
    if (entry := _entry_points().get(name)) is not None:
        return _function(name, entry.module, entry.attr)
    raise UsageError(f"no estimator is named {name!r}; {nearest(name, names())}")


def _adapted(adapter: Adapter) -> Estimator:
    name = adapter.distribution
    if not _is_here(adapter.package):
        raise UsageError(f"{name} is not installed here: pip install {name}")
    _import(name, adapter.package)
    return _function(name, adapter.module, "estimate")


def _by_path(name: str) -> Estimator:
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *function.split(".")]):
        raise UsageError(f"--estimator {name!r} must read module:function, such as my_estimator:estimate")
    folder = _current_folder()
    with _on_path(folder):
        estimator = _function(f"--estimator {name}", module, function)

    @functools.wraps(estimator)
    def estimate(case: Case, shape: ModelShape) -> Mapping[str, int] | None:
        with _on_path(folder):  # what it imports only now
            return estimator(case, shape)

    return estimate


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


@contextlib.contextmanager
def _on_path(folder: str | None) -> Iterator[None]:
    """A folder first on ``sys.path``, as ``python -m`` has it.  Not for longer: it may hold a ``random.py``."""
    if folder is None or folder in (place or _current_folder() for place in sys.path):
        yield
        return
    sys.path.insert(0, folder)
    importlib.invalidate_caches()  # the file may be younger than the last look
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # it took it away itself
            sys.path.remove(folder)


def _function(name: str, module: str, path: str) -> Estimator:
    found: Any = _import(name, module)
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise UsageError(f"{name}: {module} has no {path}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an attribute may be computed, or imported only now
            raise UsageError(f"{name}: {module}'s {path} failed: {_says(error)}") from error
    if not callable(found):
        raise UsageError(f"{name}: {path} is no function, but {_kind(found)}")
    estimator: Estimator = found
    return estimator


def _import(name: str, module: str) -> Any:
    try:
        with _quiet():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"{name}: no module {module}, installed or in this folder") from error
        raise UsageError(f"{name}: {module} can't be imported: {_says(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{name}: {module} can't be imported: {_says(error)}") from error


def estimate(name: str, estimator: Estimator, case: Case, shape: ModelShape) -> dict[str, int] | None:
    """What an estimator says of a case, in bytes by component.

    Raises:
        UsageError: it raised, or what it gave back are no components.
    """
    try:
        with _quiet():
            said = estimator(case, shape)
            return None if said is None else _components(said)
    except _NoComponentsError as error:
        raise UsageError(f"{name} on {case.label()}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{name} on {case.label()} failed: {_says(error)}") from error


class _NoComponentsError(Exception):
    """What came back is not what an estimator gives."""


def _components(said: Any) -> dict[str, int]:
    if not isinstance(said, Mapping):
        raise _NoComponentsError(f"gave {_kind(said)}, not bytes by component")
    found = {_component(name): _size(name, size) for name, size in said.items()}
    if not found:
        raise _NoComponentsError("gave no components; None is for a case about which there is nothing to say")
    if sum(found.values()) > _MAX_BYTES:
        raise _NoComponentsError("gave more than 2**63 bytes in all")
    return found


def _component(name: Any) -> str:
    if not isinstance(name, str):
        raise _NoComponentsError(f"named a component with {_kind(name)}, not with a word")
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise _NoComponentsError(f"named a component {name[:_MAX_NAME]!r}: a short word is wanted")
    return str(name)


def _size(name: Any, size: Any) -> int:
    """Anything that is an integer, numpy's too; a truth value is none, and a float has lost bytes already."""
    try:
        if isinstance(size, bool):
            raise TypeError
        found = operator.index(size)
    except TypeError:
        raise _NoComponentsError(f"gave {_kind(size)} for {name!r}, not a whole number of bytes") from None
    if not 0 <= found <= _MAX_BYTES:
        raise _NoComponentsError(f"gave {'less than no' if found < 0 else 'more than 2**63'} bytes for {name!r}")
    return found


def _quiet() -> contextlib.AbstractContextManager[Any]:
    """What others print goes where notes go: ``--json`` is one document."""
    return contextlib.redirect_stdout(sys.stderr)


def _kind(value: Any) -> str:
    return f"a value of type {type(value).__name__}"


def _says(error: BaseException) -> str:
    """An exception in one line, without what a terminal would obey."""
    try:
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(error).split())[:200])
    except Exception:  # its own words may be broken as well
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
