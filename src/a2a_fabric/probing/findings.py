"""What a probe comes to: each try with its outcome, and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a runtime of ours can reach, and what it says of itself."""

    runtime: str
    endpoint: dict[str, Any]
    told: str  # how it was recognised, for people
    name: str = ""
    description: str = ""
    version: str = ""
    is_exact: bool = True  # at the very address that was given, not at one beside it

    @property
    def is_plain(self) -> bool:
        """Whether it speaks our own contract over HTTP."""
        return self.runtime == "http" and "uri" in self.endpoint


class About(TypedDict):
    """What something says of itself."""

    name: str
    description: str
    version: str


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One try."""

    protocol: str
    outcome: str
    seconds: float
    found: Finding | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`looks` are in the order in which they are believed, among those at the address that was given."""

    target: str
    looks: tuple[Look, ...]

    @property
    def finding(self) -> Finding | None:
        """The one to believe: at the very address if there is one, then by order."""
        found = [look.found for look in self.looks if look.found is not None]
        return next((each for each in found if each.is_exact), found[0] if found else None)


def words(value: Any, most: int = 200) -> str:
    """Text of somebody else's, in one line of bounded length; nothing for anything else."""
    return " ".join(value.split())[:most] if isinstance(value, str) else ""


def first_of(*values: Any) -> str:
    return next((told for value in values if (told := words(value))), "")


def told_of(looks: Sequence[Look]) -> str:
    """Why nothing was found, in one sentence."""
    return "; ".join(f"{look.protocol}: {look.outcome}" for look in looks)
