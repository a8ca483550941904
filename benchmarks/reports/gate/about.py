"""What a report says of the check itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class About:
    """What was compared, in words, and how it ended."""

    baseline: str
    current: str
    strict: bool
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "current": self.current,
            "strict": self.strict,
            "exit_code": self.exit_code,
        }
