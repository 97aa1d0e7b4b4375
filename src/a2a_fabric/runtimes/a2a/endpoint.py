"""What a manifest says of an A2A agent: where it is, and how we should speak to it if its card leaves a choice."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.runtimes.context import decode_endpoint

Binding = Literal["jsonrpc", "http", "grpc"]
Version = Literal["1.0", "0.3"]

_PLACE = "^(https?|grpcs?)://"


class A2AEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`uri` is the agent's address, or its card's. `card` is the address of a card, or a whole one, used as it is."""

    uri: Annotated[str, Meta(pattern=_PLACE, max_length=4096)] | None = None
    transport: str = "http"
    card: str | dict[str, Any] | None = None
    binding: Binding | tuple[Binding, ...] = ()  # in order of preference; unset: as the card orders them
    version: Version | None = None  # unset: the newest that the card offers
    headers: dict[str, str] = {}
    tenant: str | None = None  # unset: as the card says
    extensions: tuple[str, ...] = ()  # URIs of extensions that we ask the agent to use
    push: bool = True  # false: it is never asked to tell by itself how a task goes on
    look_seconds: Annotated[float, Meta(gt=0, le=3600)] = 10.0  # how long an agent that would push may be silent
    blocking: bool | None = None  # false: an agent that does not stream is asked for news, not waited for

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return (self.binding,) if isinstance(self.binding, str) else self.binding


def endpoint_of(manifest: Manifest) -> A2AEndpoint:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, A2AEndpoint)
    if endpoint.uri is None and endpoint.card is None:
        raise _bad(manifest, "it needs a `uri`, or a `card`")
    if endpoint.uri is None and isinstance(endpoint.card, str) and "://" not in endpoint.card:
        raise _bad(manifest, "without a `uri`, `card` must be a whole address")
    if any("@" in urlsplit(place).netloc for place in (endpoint.uri, endpoint.card) if isinstance(place, str)):
        raise _bad(manifest, "it has a user name in its address; put credentials into `headers`, as env:NAME")
    return endpoint


def _bad(manifest: Manifest, why: str) -> BadInput:
    return BadInput(f"Agent '{manifest.agent_id}' has a bad endpoint: {why}", agent_id=manifest.agent_id)


def public(address: str) -> str:
    """As it may be shown in an error: scheme and host, or what stands in its place."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else address.partition("/")[0]
