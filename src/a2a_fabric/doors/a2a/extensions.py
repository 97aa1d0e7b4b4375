"""Extensions that an agent declares (`metadata.a2a.extensions` of its manifest), and which of them are active.

Callers name those that they know, in the header `A2A-Extensions` or in a message's own
`extensions`. What the agent has too is active for that request, and the reply says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.doors.a2a.faults import Fault
from a2a_fabric.doors.a2a.versions import Version

HEADERS: dict[Version, bytes] = {"1.0": b"a2a-extensions", "0.3": b"x-a2a-extensions"}
SCHEMAS = "urn:a2a-fabric:skill-schemas"  # our own: the schemas of the skills, in the card
_KEY = "a2a"


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    description: str = ""
    required: bool = False
    params: dict[str, Any] = {}


def declared(manifest: Manifest) -> tuple[Extension, ...]:
    """What is not of this form is nobody's extension: the metadata may hold anything."""
    own = manifest.metadata.get(_KEY)
    try:
        return msgspec.convert(own.get("extensions", ()) if isinstance(own, dict) else (), tuple[Extension, ...])
    except msgspec.ValidationError:
        return ()


class Agreement:
    """Of one request. `named` is a list with commas; the agent may turn out only later, so `active` grows."""

    def __init__(self, named: str = "") -> None:
        self.active: list[str] = []
        self._named = {each.strip() for each in named.split(",")} - {""}

    def meet(self, manifest: Manifest, also: Iterable[str] = ()) -> None:
        """This is the agent; `also` is what the message names."""
        wanted = self._named.union(also)
        if wanted:
            self.active += [each for each in _offered(manifest) if each in wanted and each not in self.active]

    def check(self, manifest: Manifest, also: Iterable[str] = ()) -> None:
        """Raises Fault if the agent requires what nobody named."""
        self.meet(manifest, also)
        if _KEY not in manifest.metadata:
            return
        known = self._named.union(also)
        missing = [each.uri for each in declared(manifest) if each.required and each.uri not in known]
        if missing:
            told = f"'{manifest.agent_id}' requires these extensions: {', '.join(missing)}"
            raise Fault("EXTENSION_SUPPORT_REQUIRED", f"{told}; name them in A2A-Extensions", uris=" ".join(missing))

    def headers(self, version: Version) -> list[tuple[bytes, bytes]]:
        """Of the reply."""
        said = ", ".join(each for each in self.active if _can_stand_in_a_list(each))
        return [(HEADERS[version], said.encode())] if said else []


def _offered(manifest: Manifest) -> list[str]:
    """All that stand in its card."""
    has_schemas = any(each.input_schema is not None or each.output_schema is not None for each in manifest.capabilities)
    return [*dict.fromkeys(each.uri for each in declared(manifest)), *([SCHEMAS] if has_schemas else [])]


def _can_stand_in_a_list(uri: str) -> bool:
    return uri.isascii() and uri.isprintable() and not any(letter in uri for letter in ", ")
