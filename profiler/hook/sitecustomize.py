"""Runs when a Python under ``nooom measure`` starts: waits for torch, and starts recording once it has been imported.

It may run in any Python from 3.9 on, where nooom is not installed, and in programs that have a ``profiler.py`` of their
own.  So it needs nothing but the standard library, leaves the search path as it would be without it, and imports nooom
by its place.  Whatever goes wrong here is one line on stderr, and never the program's problem.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

TYPE_CHECKING = False  # as typing's, whose import takes longer than all that is done here
if TYPE_CHECKING:
    from typing import Any

_SETTINGS = "NOOOM_MEASURE"
"""The environment's name for what ``nooom measure`` wants of this process, as JSON."""
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watch:
    """First on ``sys.meta_path``: everybody else finds torch as always, and its loader says when it has run.

    Finding is not importing: programs also ask whether torch is there.
    """

    def __init__(self, settings: str) -> None:
        self._settings = settings

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As others find it; raises what they raise."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._listen(spec.loader)
                return spec
        return None

    def _listen(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None or not hasattr(loader, "__dict__"):  # a folder named torch has none
            return

        def exec_module(module: Any) -> None:
            del loader.exec_module  # whoever looks at torch's loader later finds nothing of ours
            execute(module)
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            _begin(module, self._settings)

        loader.exec_module = exec_module


def _begin(torch: Any, text: str) -> None:
    try:
        import json  # not before: most Pythons that start never need it

        settings = json.loads(text)
        _import_nooom(settings["nooom"])
        from nooom.profiler import inside

        inside.begin(torch, settings)
    except Exception as error:  # an old Python, an unusual torch: the program runs on, unmeasured
        import contextlib

        with contextlib.suppress(Exception):  # stderr may be closed
            print(f"nooom: process {os.getpid()} is not measured: {error!r}", file=sys.stderr)


def _import_nooom(folder: str) -> None:
    """The nooom that measures, from its folder: its own folder's neighbours stay out of the search path."""
    if "nooom" in sys.modules:
        return
    from importlib.util import module_from_spec, spec_from_file_location

    place = os.path.join(folder, "__init__.py")
    spec = spec_from_file_location("nooom", place, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["nooom"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["nooom"]
        raise


def _start() -> None:
    # The environment keeps the folder for this process's children; here its work is done.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    settings = os.environ.get(_SETTINGS)
    if settings:
        sys.meta_path.insert(0, _Watch(settings))


def _the_users_own() -> None:
    """The sitecustomize that would have run: it takes this one's place, and its errors are its own."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # and not where a checker or a test imports it by another name
    try:  # noqa: SIM105 - contextlib is not loaded yet, and everything here waits for every Python that starts
        _start()
    except Exception:  # nothing of ours may stand in the program's way
        pass
    _the_users_own()
