"""Signatures with NKEYs (Ed25519 keys in base32), which servers accept instead of passwords."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from a2a_fabric.core.errors import ConfigError

_SEED_PREFIX = 18 << 3  # S
_USER_PREFIX = 20 << 3  # U
_BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+(\S+)\s+-{3,}END [A-Z ]+-{3,}")


class Signer(msgspec.Struct, frozen=True):
    """Signs the server's nonce. `public_key` names the user, unless `jwt` does."""

    public_key: str
    sign: Callable[[str], bytes]  # the signature in base64
    jwt: str | None = None


def signer_from_seed(seed: str, jwt: str | None = None) -> Signer:
    """Raises ConfigError for text that is not the seed of a user."""
    try:
        raw = base64.b32decode(seed.strip() + "=" * (-len(seed.strip()) % 8))
    except binascii.Error:
        raw = b""
    is_seed = len(raw) == 36 and int.from_bytes(raw[34:], "little") == binascii.crc_hqx(raw[:34], 0)
    if not is_seed or raw[0] & 0xF8 != _SEED_PREFIX or ((raw[0] & 7) << 5 | raw[1] >> 3) != _USER_PREFIX:
        raise ConfigError("NATS: the nkey is not the seed of a user, which begins with SU")
    key = Ed25519PrivateKey.from_private_bytes(raw[2:34])
    public = bytes([_USER_PREFIX]) + key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    public += binascii.crc_hqx(public, 0).to_bytes(2, "little")
    return Signer(
        base64.b32encode(public).decode().rstrip("="), lambda nonce: base64.b64encode(key.sign(nonce.encode())), jwt
    )


def signer_from_creds(text: str) -> Signer:
    """From the text of a .creds file. Raises ConfigError."""
    blocks = dict(_BLOCK.findall(text))
    try:
        return signer_from_seed(blocks["USER NKEY SEED"], blocks["NATS USER JWT"])
    except KeyError as exc:
        raise ConfigError("NATS: the credentials hold no user JWT with its NKEY seed; write them with: nsc") from exc
