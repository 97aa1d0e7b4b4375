"""Which version of the protocol a request is in. One that says nothing is of 0.3, as the specification has it."""

from __future__ import annotations

import re
from typing import Literal

from a2a_fabric.doors.a2a.faults import Fault

Version = Literal["1.0", "0.3"]
HEADER = b"a2a-version"
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d+)?")
SUPPORTED: tuple[Version, ...] = ("1.0", "0.3")


def version_of(given: str | None, offered: tuple[Version, ...] = SUPPORTED) -> Version:
    """Patch versions do not matter. Raises Fault."""
    wanted = (given or "").strip() or "0.3"
    match = _VERSION.fullmatch(wanted)
    for version in offered:
        if match is not None and f"{match[1]}.{match[2]}" == version:
            return version
    told = ", ".join(offered)
    raise Fault("VERSION_NOT_SUPPORTED", f"A2A version '{wanted[:32]}' is not supported here; these are: {told}")


def is_old(given: str | None) -> bool:
    """Whether who says so, or nothing, reads the error numbers of 0.3."""
    wanted = (given or "").strip()
    return not wanted or wanted.startswith("0.")


def needs(version: Version, found: Version, what: str) -> None:
    """Raises Fault."""
    if version != found:
        raise Fault(
            "VERSION_NOT_SUPPORTED", f"{what} belongs to A2A {version}: send the header 'A2A-Version: {version}'"
        )
