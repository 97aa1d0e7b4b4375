"""Authentication: from the credentials of a request to a principal.

The public names are for agents and tools that check or issue credentials without a node. They are imported when they
are first used, since they need the cryptography library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from a2a_fabric.identity.forwarded import ForwardedIdentity, NodeIdentityVerifier, VerifiedIdentity
    from a2a_fabric.identity.mandates import Mandate, issue_mandate, narrow_mandate, prove_mandate, verify_mandate
    from a2a_fabric.identity.passports import check_passport, decode_passport, issue_passport
    from a2a_fabric.identity.receipts import Verification, verify_lines
    from a2a_fabric.identity.signed_traces import verify_trace
    from a2a_fabric.identity.signing import SigningKey, create_key_file, parse_public_keys, read_key_file

_LAZY_NAMES = {
    "ForwardedIdentity": "a2a_fabric.identity.forwarded",
    "Mandate": "a2a_fabric.identity.mandates",
    "NodeIdentityVerifier": "a2a_fabric.identity.forwarded",
    "SigningKey": "a2a_fabric.identity.signing",
    "Verification": "a2a_fabric.identity.receipts",
    "VerifiedIdentity": "a2a_fabric.identity.forwarded",
    "check_passport": "a2a_fabric.identity.passports",
    "create_key_file": "a2a_fabric.identity.signing",
    "decode_passport": "a2a_fabric.identity.passports",
    "issue_mandate": "a2a_fabric.identity.mandates",
    "issue_passport": "a2a_fabric.identity.passports",
    "narrow_mandate": "a2a_fabric.identity.mandates",
    "prove_mandate": "a2a_fabric.identity.mandates",
    "parse_public_keys": "a2a_fabric.identity.signing",
    "read_key_file": "a2a_fabric.identity.signing",
    "verify_lines": "a2a_fabric.identity.receipts",
    "verify_mandate": "a2a_fabric.identity.mandates",
    "verify_trace": "a2a_fabric.identity.signed_traces",
}

__all__ = [
    "ForwardedIdentity",
    "Mandate",
    "NodeIdentityVerifier",
    "SigningKey",
    "Verification",
    "VerifiedIdentity",
    "check_passport",
    "create_key_file",
    "decode_passport",
    "issue_mandate",
    "issue_passport",
    "narrow_mandate",
    "prove_mandate",
    "parse_public_keys",
    "read_key_file",
    "verify_lines",
    "verify_mandate",
    "verify_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_NAMES[name]), name)
