"""The console that the reports print on."""

from __future__ import annotations

from rich.console import Console

NARROWEST = 80
"""Columns.  A table that is squeezed further cuts figures, and a cut figure is a wrong one: terminals wrap instead."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever reads has read enough, which is no failure: the command ends as it does for ``--json``."""
        raise BrokenPipeError


def console() -> Console:
    """Text as it is: neither markup nor ``:names:`` of emoji, and what the encoding lacks as an escape."""
    made = _Console(markup=False, emoji=False, highlight=False)
    made.width = max(made.width, NARROWEST)
    if hasattr(made.file, "reconfigure"):
        made.file.reconfigure(errors="backslashreplace")
    return made
