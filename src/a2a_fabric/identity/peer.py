"""The other end of a connection: its address, and the certificate that it showed (mTLS).

Both are read once for each connection. Only certificates that the TLS library has verified count."""

from __future__ import annotations

import ssl
from typing import Any

import msgspec

# In the scope of a request, below `state`: the `Peer` of a connection with a client certificate.
PEER_KEY = "fabric.peer"
_KINDS = {"DNS": "dns", "URI": "uri", "email": "email"}
_MAX_NAMES = 64


class PeerCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """`names` are its alternative names: `dns:…`, `uri:…` (SPIFFE ids are URIs) and `email:…`."""

    names: tuple[str, ...]
    not_before: float
    not_after: float


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    address: str = ""
    certificate: PeerCertificate | None = None


def read_certificate(ssl_object: Any) -> PeerCertificate | None:
    """The certificate of a TLS connection's client; None without any."""
    shown: dict[str, Any] | None = ssl_object.getpeercert() if ssl_object is not None else None
    if not shown:
        return None
    names = [f"{_KINDS[kind]}:{name}" for kind, name in shown.get("subjectAltName", ()) if kind in _KINDS]
    return PeerCertificate(
        names=tuple(names[:_MAX_NAMES]),
        not_before=ssl.cert_time_to_seconds(shown["notBefore"]),
        not_after=ssl.cert_time_to_seconds(shown["notAfter"]),
    )


def peer_from_scope(scope: Any) -> Peer:
    state = scope.get("state")
    peer: Peer | None = None if state is None else state.get(PEER_KEY)
    if peer is not None:
        return peer
    client = scope.get("client")
    return Peer(address=client[0]) if client else NO_PEER


NO_PEER = Peer()
