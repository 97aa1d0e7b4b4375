"""Signed traces: the `signature` in the `trace` of a reply, for callers of the Fabric wire that ask for one.

It is a JWT (EdDSA) of the type `fabric-trace+jwt`. It says which node answered under which trace, how the call ended,
and what the result was (its digest). `verify_trace` needs no node: the reply and the node's public keys are enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from a2a_fabric.core.errors import AuthInvalid
from a2a_fabric.core.propagation import Trace
from a2a_fabric.identity.receipts import digest_json
from a2a_fabric.identity.signing import SigningKey, read_token, sign_token

TRACE_TYPE = "fabric-trace+jwt"


def sign_trace(key: SigningKey, node: str, trace: Trace, outcome: str, result: Any, now: float) -> str:
    """`outcome` is `ok`, or the code of the error."""
    claims = {
        "iss": node,
        "iat": int(now),
        **msgspec.to_builtins(trace),
        "outcome": outcome,
        "dig": digest_json(result),
    }
    return sign_token(msgspec.json.encode(claims), key, TRACE_TYPE)


def verify_trace(reply: Mapping[str, Any], keys: Mapping[str, Ed25519PublicKey], node: str) -> None:
    """Check that the node of this name gave this reply, an envelope of the Fabric wire. Raises AuthInvalid."""
    try:
        trace = dict(reply["trace"])
        token = read_token(trace.pop("signature"))
        claims = msgspec.json.decode(token.claims, type=dict[str, Any])
        if not token.is_of_type(TRACE_TYPE) or not token.is_signed_with(keys[token.key_id or ""]):
            raise ValueError("not the signature of a trace")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise AuthInvalid("The signature of the trace is missing or not valid, or its key is not known") from exc
    if claims.get("iss") != node:
        raise AuthInvalid(f"The trace was signed by '{str(claims.get('iss'))[:200]}', not by '{node}'")
    error = reply.get("error")
    code = error.get("code") if isinstance(error, Mapping) else reply.get("error_code")
    outcome = "ok" if reply.get("ok") is True else code
    signed = {name: claims.get(name) for name in ("trace_id", "span_id", "parent_span_id")}
    if signed != trace or claims.get("outcome") != outcome or claims.get("dig") != digest_json(reply.get("result")):
        raise AuthInvalid("The reply is not what was signed")
