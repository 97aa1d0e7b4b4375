"""Facts about one A2A request, whichever binding it came through: caller, agent, protocol version, active extensions.

A request without a version is a 0.3 request, as the specification says. An agent declares extensions in
`metadata.a2a.extensions` of its manifest; a caller names the extensions it supports in the header `A2A-Extensions`
or in the message. An extension that both name is active for the request, and the reply lists it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.a2a.errors import A2AProtocolError
from a2a_fabric.protocols.a2a.models import A2AVersion

VERSION_HEADER = b"a2a-version"
_VERSION_PATTERN = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d+)?")
SUPPORTED_VERSIONS: tuple[A2AVersion, ...] = ("1.0", "0.3")


def parse_version(value: str | None, supported: tuple[A2AVersion, ...] = SUPPORTED_VERSIONS) -> A2AVersion:
    """Patch versions are ignored. Raises A2AProtocolError."""
    requested = (value or "").strip() or "0.3"
    match = _VERSION_PATTERN.fullmatch(requested)
    for version in supported:
        if match is not None and f"{match[1]}.{match[2]}" == version:
            return version
    raise A2AProtocolError(
        "VERSION_NOT_SUPPORTED",
        f"A2A version '{requested[:32]}' is not supported; supported versions: {', '.join(supported)}",
    )


def is_0_3_request(value: str | None) -> bool:
    """Whether a client that sent this version, or none, expects the error codes of 0.3."""
    requested = (value or "").strip()
    return not requested or requested.startswith("0.")


def require_version(version: A2AVersion, actual: A2AVersion, subject: str) -> None:
    """Raises A2AProtocolError."""
    if version != actual:
        raise A2AProtocolError(
            "VERSION_NOT_SUPPORTED", f"{subject} belongs to A2A {version}: send the header 'A2A-Version: {version}'"
        )


EXTENSION_HEADERS: dict[A2AVersion, bytes] = {"1.0": b"a2a-extensions", "0.3": b"x-a2a-extensions"}
SCHEMAS_EXTENSION = "urn:a2a-fabric:skill-schemas"  # of this gateway: the schemas of the skills, in the card
_METADATA_KEY = "a2a"


class A2AExtension(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    description: str = ""
    required: bool = False
    params: dict[str, Any] = {}


def read_declared_extensions(manifest: Manifest) -> tuple[A2AExtension, ...]:
    """Metadata may hold anything, so values of another form are ignored."""
    section = manifest.metadata.get(_METADATA_KEY)
    try:
        return msgspec.convert(
            section.get("extensions", ()) if isinstance(section, dict) else (), tuple[A2AExtension, ...]
        )
    except msgspec.ValidationError:
        return ()


class ExtensionNegotiation:
    """The extensions of one request. `active` grows: the agent may be chosen only after the headers are read."""

    def __init__(self, requested: str = "") -> None:
        self.active: list[str] = []
        self._requested = {each.strip() for each in requested.split(",")} - {""}

    def activate(self, manifest: Manifest, in_message: Iterable[str] = ()) -> None:
        """Activate the extensions of the agent that the header or the message names."""
        requested = self._requested.union(in_message)
        if requested:
            self.active += [
                each for each in _list_offered_extensions(manifest) if each in requested and each not in self.active
            ]

    def check_required(self, manifest: Manifest, in_message: Iterable[str] = ()) -> None:
        """Raises A2AProtocolError if the agent requires an extension that the request does not name."""
        self.activate(manifest, in_message)
        if _METADATA_KEY not in manifest.metadata:
            return
        requested = self._requested.union(in_message)
        missing = [
            each.uri for each in read_declared_extensions(manifest) if each.required and each.uri not in requested
        ]
        if missing:
            problem = f"'{manifest.agent_id}' requires these extensions: {', '.join(missing)}"
            raise A2AProtocolError(
                "EXTENSION_SUPPORT_REQUIRED", f"{problem}; name them in A2A-Extensions", uris=" ".join(missing)
            )

    def build_headers(self, version: A2AVersion) -> list[tuple[bytes, bytes]]:
        """The reply header that lists the active extensions."""
        value = ", ".join(each for each in self.active if _is_header_safe(each))
        return [(EXTENSION_HEADERS[version], value.encode())] if value else []


def _list_offered_extensions(manifest: Manifest) -> list[str]:
    """All extensions in the agent's card."""
    has_schemas = any(each.input_schema is not None or each.output_schema is not None for each in manifest.capabilities)
    return [
        *dict.fromkeys(each.uri for each in read_declared_extensions(manifest)),
        *([SCHEMAS_EXTENSION] if has_schemas else []),
    ]


def _is_header_safe(uri: str) -> bool:
    return uri.isascii() and uri.isprintable() and not any(letter in uri for letter in ", ")


class A2ARequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """`agent` is None at the gateway's own address. `last_event_id` is the last event that a returning client has."""

    principal: Principal
    trace: Trace
    agent: Manifest | None = None
    base_url: str = ""  # as this caller reaches the node; empty if not known
    last_event_id: int | None = None
    extensions: ExtensionNegotiation = msgspec.field(default_factory=ExtensionNegotiation)
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
