"""What a caller is shown of the operator's affairs: addresses, private metadata, and the inner words of failures.

Only the operator sees more of an agent's address than scheme and host, what a program
wrote to stderr, the text of an exception of a Python agent, why an agent is unhealthy, and
`metadata` under keys that begin with `private`. Every view and every error asks here.

The operator is the holder of the node's own key, and on a node that listens on loopback
only the caller without credentials: a program of the same machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError

OPERATOR = "psk"  # as the node's own key is called among others
OPERATORS = Principal(mode="psk", principal_id=OPERATOR, trust="local")  # who reads what the command line prints
PRIVATE = "private"  # keys of metadata that begin with it are for the operator

_NOT_SAID = "Its operator sees why"


def is_operator(principal: Principal) -> bool:
    """Whoever holds the node's own key, which no scope limits."""
    return (principal.mode, principal.principal_id, principal.scp, principal.cap) == ("psk", OPERATOR, None, None)


def acts_as_operator(principal: Principal) -> bool:
    """The operator, or a caller of a node that asks this machine's programs for no key at all."""
    is_open = (principal.mode, principal.trust, principal.scp, principal.cap) == ("none", "local", None, None)
    return is_operator(principal) or is_open


def disclose(error: FabricError, principal: Principal) -> None:
    """Let an error tell the operator its whole sentence; everybody else reads it as it is."""
    if error.private is not None and acts_as_operator(principal):
        error.message = error.private


def shown_address(uri: str, principal: Principal) -> str:
    """Without credentials and query for the operator, scheme and host for others."""
    try:
        parts = urlsplit(uri)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    if acts_as_operator(principal):
        return uri if "@" not in uri and "?" not in uri else urlunsplit((parts.scheme, host, parts.path, "", ""))
    return f"{parts.scheme}://{host}" if host else f"{parts.scheme}:" if parts.scheme else ""


def shown_endpoint(manifest: Manifest, principal: Principal) -> dict[str, Any]:
    """Transport and address only: headers, tokens, commands and passwords stay inside."""
    uri = str(manifest.endpoint.get("uri", ""))
    return {"transport": manifest.transport, "uri": shown_address(uri, principal)}


def shown_metadata(metadata: Mapping[str, Any], principal: Principal) -> dict[str, Any]:
    return dict(metadata) if acts_as_operator(principal) else _without_private(metadata)


def shown_reason(health: Health, principal: Principal) -> str | None:
    """Why an agent is not well. Its words may come from a program, an exception or an address."""
    return hide_reason(health.error, health.status, principal)


def hide_reason(reason: str | None, status: str, principal: Principal) -> str | None:
    if reason is None or acts_as_operator(principal):
        return reason
    return f"The agent is {status}. {_NOT_SAID}"


def _without_private(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_private(inner) for key, inner in value.items() if not str(key).startswith(PRIVATE)}
    if isinstance(value, list | tuple):
        return [_without_private(inner) for inner in value]
    return value
