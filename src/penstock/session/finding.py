"""What a check of this machine found, and how several findings are reported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import DependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """What a check found about its subject, `name`, and what to do about it unless all is well."""

    name: str
    state: State
    text: str
    advice: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


def require(*findings: Finding) -> None:
    """Raise one `DependencyError` for all problems; it says what to do about each."""
    problems = [str(finding) for finding in findings if finding.state == "problem"]
    if problems:
        raise DependencyError("\n".join(problems))


def notes(findings: list[Finding]) -> Iterator[str]:
    """Yield what a start should report: what costs time, or is not used as it was set."""
    yield from (str(finding) for finding in findings if finding.state == "note")
