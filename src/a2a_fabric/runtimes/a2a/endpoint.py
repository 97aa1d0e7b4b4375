"""The endpoint of an A2A agent as written in its manifest: address, card, and preferred binding and version."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.protocols.a2a.models import A2ABinding, A2AVersion
from a2a_fabric.runtimes.context import decode_endpoint

_URI_PATTERN = "^(https?|grpcs?)://"


class A2AEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`uri` is the address of the agent or of its card. `card` is the address of a card, or the card itself."""

    uri: Annotated[str, Meta(pattern=_URI_PATTERN, max_length=4096)] | None = None
    transport: str = "http"
    card: str | dict[str, Any] | None = None
    binding: A2ABinding | tuple[A2ABinding, ...] = ()  # in order of preference; unset: as the card orders them
    version: A2AVersion | None = None  # unset: the newest that the card offers
    headers: dict[str, str] = {}
    tenant: str | None = None  # unset: as the card says
    extensions: tuple[str, ...] = ()  # URIs of extensions that the agent is asked to use
    push: bool = True  # false: the agent is never asked for push notifications
    look_seconds: Annotated[float, Meta(gt=0, le=3600)] = 10.0  # silence after which an agent that pushes is polled
    blocking: bool | None = None  # false: an agent that does not stream is polled instead

    @property
    def bindings(self) -> tuple[A2ABinding, ...]:
        return (self.binding,) if isinstance(self.binding, str) else self.binding


def read_endpoint(manifest: Manifest) -> A2AEndpoint:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, A2AEndpoint)
    if endpoint.uri is None and endpoint.card is None:
        raise _bad_endpoint(manifest, "it needs a `uri`, or a `card`")
    if endpoint.uri is None and isinstance(endpoint.card, str) and "://" not in endpoint.card:
        raise _bad_endpoint(manifest, "without a `uri`, `card` must be a whole address")
    if any("@" in urlsplit(address).netloc for address in (endpoint.uri, endpoint.card) if isinstance(address, str)):
        raise _bad_endpoint(manifest, "it has a user name in its address; put credentials into `headers`, as env:NAME")
    return endpoint


def _bad_endpoint(manifest: Manifest, why: str) -> BadInput:
    return BadInput(f"Agent '{manifest.agent_id}' has a bad endpoint: {why}", agent_id=manifest.agent_id)


def public_address(address: str) -> str:
    """The address as an error may show it: scheme and host. Addresses of gRPC may be only host and port."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else address.partition("/")[0]
