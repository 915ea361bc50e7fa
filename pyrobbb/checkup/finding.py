"""One check of a fit, and the verdict on several."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One check: `value` beside the `limit` that it must not exceed, None if it could not be checked."""

    name: str
    value: float | None
    limit: float
    words: str

    @property
    def passed(self) -> bool | None:
        """Whether it is within the limit; None if that is not known."""
        return None if self.value is None else self.value <= self.limit

    def __str__(self) -> str:
        sign = {True: "ok", False: "FAULT", None: "not known"}[self.passed]
        return f"{sign:9} {self.name}: {self.words}"


def verdict(findings: Sequence[Finding]) -> str:
    """One sentence."""
    faults = [finding.name for finding in findings if finding.passed is False]
    unknown = [finding.name for finding in findings if finding.passed is None]
    if faults:
        return f"do not trust this posterior yet: {', '.join(faults)}"
    asked = f"; not checked: {', '.join(unknown)}" if unknown else ""
    return f"no fault found{asked}"
