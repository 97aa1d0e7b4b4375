"""What callers are shown: the operator sees everything, other callers only what is not private.

Only the operator sees more of an agent's address than scheme and host, what a program wrote to stderr, the text of a
Python agent's exception, why an agent is unhealthy, and `metadata` under keys that begin with `private`. Every view
and every error goes through these functions. The operator is the holder of the node's own key and, on a node
that listens on loopback only, a caller without credentials: a program of the same machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.federation import AgentOrigin

OPERATOR_ID = "psk"  # as the node's own key is called among others
OPERATOR_PRINCIPAL = Principal(
    mode="psk", principal_id=OPERATOR_ID, trust="local"
)  # the reader of the command line's output
PRIVATE_PREFIX = "private"  # keys of metadata that begin with it are for the operator
_HIDDEN_REASON = "Its operator sees why"


def is_operator(principal: Principal) -> bool:
    """Whether the caller holds the node's own key, which no scope limits."""
    return (principal.mode, principal.principal_id, principal.scp, principal.cap) == ("psk", OPERATOR_ID, None, None)


def acts_as_operator(principal: Principal) -> bool:
    """The operator, or a caller of a node that asks this machine's programs for no key at all."""
    is_anonymous_local = (principal.mode, principal.trust, principal.scp, principal.cap) == (
        "none",
        "local",
        None,
        None,
    )
    return is_operator(principal) or is_anonymous_local


def administers(principal: Principal) -> bool:
    """The operator, who sees everything; not while narrowed to a view."""
    return acts_as_operator(principal) and principal.views is msgspec.UNSET


def reveal_to_operator(error: FabricError, principal: Principal) -> None:
    """Give the operator the complete message of an error; other callers read the short one."""
    if error.private is not None and acts_as_operator(principal):
        error.message = error.private


def redact_address(uri: str, principal: Principal) -> str:
    """The address without credentials and query for the operator; scheme and host for others."""
    try:
        parts = urlsplit(uri)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    if acts_as_operator(principal):
        return uri if "@" not in uri and "?" not in uri else urlunsplit((parts.scheme, host, parts.path, "", ""))
    return f"{parts.scheme}://{host}" if host else f"{parts.scheme}:" if parts.scheme else ""


def redact_endpoint(manifest: Manifest, principal: Principal) -> dict[str, Any]:
    """Transport and address only: headers, tokens, commands and passwords stay inside."""
    uri = str(manifest.endpoint.get("uri", ""))
    return {"transport": manifest.transport, "uri": redact_address(uri, principal)}


def redact_origin(origin: AgentOrigin, principal: Principal) -> dict[str, Any]:
    """Where an agent comes from; folders and files of this machine are for the operator."""
    if not acts_as_operator(principal):
        url = "" if origin.url.startswith("/") else origin.url  # a repository of this machine
        origin = msgspec.structs.replace(origin, registry="", folder="", url=url)
    return dict(msgspec.to_builtins(origin))


def redact_metadata(metadata: Mapping[str, Any], principal: Principal) -> dict[str, Any]:
    return dict(metadata) if acts_as_operator(principal) else _drop_private_keys(metadata)


def redact_health_reason(health: Health, principal: Principal) -> str | None:
    """Why an agent is not online, without text from programs, exceptions or addresses for ordinary callers."""
    return redact_reason(health.error, health.status, principal)


def redact_reason(reason: str | None, status: str, principal: Principal) -> str | None:
    if reason is None or acts_as_operator(principal):
        return reason
    return f"The agent is {status}. {_HIDDEN_REASON}"


def _drop_private_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _drop_private_keys(inner) for key, inner in value.items() if not str(key).startswith(PRIVATE_PREFIX)
        }
    if isinstance(value, list | tuple):
        return [_drop_private_keys(inner) for inner in value]
    return value
