"""What commands put into README stands between two markers, so that every figure there is one that a command made."""

from __future__ import annotations

from nooom.formulas.errors import UsageError


def between(text: str, begin: str, end: str, content: str) -> str:
    """The text with ``content``, whole lines, between the two markers' lines.

    Raises:
        UsageError: it has no such markers.
    """
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise UsageError(f"no place for the table: the text needs a line {begin} and a line {end}")
    return f"{before}{begin}\n{content}{end}{after}"
