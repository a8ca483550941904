"""The one error tree: each error is a single clear line and knows the command's exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NooomError(Exception):
    """Anything that ends the command with a message instead of a traceback."""

    exit_code = 1


class UsageError(NooomError):
    """Wrong usage or input: a flag, a value, a file."""

    exit_code = 2


class CannotMeasureError(NooomError):
    """Nothing wrong with the question, but it can't be measured here: no GPU, NVML missing, device busy."""

    exit_code = 3


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest valid names, or all of them when they are few."""
    names = sorted(set(known))
    folded = {name.lower(): name for name in names}
    close = [folded[key] for key in difflib.get_close_matches(word.lower(), folded, n=3, cutoff=0.5)]
    if close:
        return f"did you mean {' or '.join(close)}?"
    if len(names) <= 16:
        return f"valid: {', '.join(names)}"
    return f"valid: {', '.join(names[:16])}, ... ({len(names)} in all)"
