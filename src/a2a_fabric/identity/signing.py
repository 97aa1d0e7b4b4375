"""Ed25519 keys that sign passports, mandates, forwarded identities and receipts.

A private key is a JSON Web Key (RFC 8037) in a file that only its owner can read. Public keys are published as a JSON
Web Key Set. The id of a key is its thumbprint (RFC 7638), so it depends on nothing but the key. What is signed of a
JSON object is its canonical form (RFC 8785), so white space and the order of fields do not matter.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.identity.keyfile import KeyFile

ALGORITHM = "EdDSA"


class SigningKey:
    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self.private_key = private_key
        self.public_key = private_key.public_key()
        self.key_id = make_key_id(self.public_key)

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @property
    def public_jwk(self) -> dict[str, str]:
        return {**make_jwk(self.public_key), "kid": self.key_id, "alg": ALGORITHM, "use": "sig"}

    def sign(self, content: bytes) -> str:
        return encode_base64url(self.private_key.sign(content))


def make_jwk(public_key: Ed25519PublicKey) -> dict[str, str]:
    return {"kty": "OKP", "crv": "Ed25519", "x": encode_base64url(public_key.public_bytes_raw())}


def make_key_id(public_key: Ed25519PublicKey) -> str:
    """The thumbprint of the key."""
    return encode_base64url(hashlib.sha256(encode_canonical(make_jwk(public_key))).digest())


def encode_canonical(value: Any) -> bytes:
    """Raises ValueError for a value that has no canonical form, such as an integer beyond 2**53."""
    return rfc8785.dumps(value)


def is_signed(content: bytes, signature: str, public_key: Ed25519PublicKey) -> bool:
    try:
        public_key.verify(decode_base64url(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def encode_base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def decode_base64url(text: str) -> bytes:
    """Raises ValueError. Only the one spelling that `encode_base64url` writes is accepted."""
    try:
        content = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as exc:
        raise ValueError("not base64url") from exc
    if encode_base64url(content) != text:
        raise ValueError("not the canonical spelling of base64url")
    return content


class SignedToken(NamedTuple):
    """A JSON Web Token, not verified yet."""

    header: dict[str, Any]
    claims: bytes  # as JSON
    signed: bytes
    signature: str

    @property
    def key_id(self) -> str | None:
        key_id = self.header.get("kid")
        return key_id if isinstance(key_id, str) else None

    def is_of_type(self, token_type: str) -> bool:
        return self.header.get("typ") == token_type

    def is_signed_with(self, public_key: Ed25519PublicKey) -> bool:
        return self.header.get("alg") == ALGORITHM and is_signed(self.signed, self.signature, public_key)


def sign_token(claims: bytes, key: SigningKey, token_type: str) -> str:
    """A JSON Web Token with these claims. It takes a third of the time that a general library needs."""
    header = b'{"alg":"EdDSA","kid":"%b","typ":"%b"}' % (key.key_id.encode(), token_type.encode())
    signed = f"{encode_base64url(header)}.{encode_base64url(claims)}"
    return f"{signed}.{key.sign(signed.encode())}"


def read_token(text: str) -> SignedToken:
    """Raises ValueError for what is not a JSON Web Token in the one form that is accepted."""
    signed, _, signature = text.rpartition(".")
    header_part, _, claims_part = signed.partition(".")
    header = msgspec.json.decode(decode_base64url(header_part))
    if not isinstance(header, dict) or "crit" in header:  # what its signer calls critical is not known here
        raise ValueError("not the header of a token")
    return SignedToken(header, decode_base64url(claims_part), signed.encode(), signature)


def create_key_file(path: Path) -> SigningKey:
    """Write a new private key. Raises ConfigError if the file exists or cannot be written."""
    key = SigningKey.generate()
    jwk = {**key.public_jwk, "d": encode_base64url(key.private_key.private_bytes_raw())}
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(msgspec.json.encode(jwk) + b"\n")
    except FileExistsError:
        raise ConfigError(
            f"{path}: the file exists. A new key needs a new file: the old key may still be in use"
        ) from None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
    return key


def read_key_file(path: Path) -> SigningKey:
    """Raises ConfigError if there is no file, if it holds no private key, or if other users can read it."""
    text = KeyFile(path).read()
    if text is None:
        raise ConfigError(f"{path}: there is no such file. `a2a-fabric passport keygen {path}` makes a key")
    try:
        jwk = msgspec.json.decode(text)
        key = SigningKey(Ed25519PrivateKey.from_private_bytes(decode_base64url(jwk["d"])))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as exc:
        raise ConfigError(f"{path}: the file holds no private Ed25519 key in the form of a JSON Web Key") from exc
    if jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519" or jwk.get("x") != key.public_jwk["x"]:
        raise ConfigError(f"{path}: the private and the public part of the key do not belong together")
    return key


def parse_public_key(jwk: Any) -> Ed25519PublicKey:
    """Raises ValueError if it is not an Ed25519 key."""
    if not isinstance(jwk, Mapping) or jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519":
        raise ValueError("not an Ed25519 key")
    coordinate = jwk.get("x")
    if not isinstance(coordinate, str):
        raise ValueError("the key has no `x`")
    return Ed25519PublicKey.from_public_bytes(decode_base64url(coordinate))


def parse_public_keys(document: bytes) -> dict[str, Ed25519PublicKey]:
    """The Ed25519 keys of a JSON Web Key Set, or a single key, by id. Raises ValueError if there are none.

    A key without `kid` gets its thumbprint. A private key is taken for its public part.
    """
    try:
        decoded = msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ValueError("not JSON") from exc
    entries = decoded.get("keys", [decoded]) if isinstance(decoded, dict) else None
    keys: dict[str, Ed25519PublicKey] = {}
    for entry in entries if isinstance(entries, list) else ():
        try:
            key = parse_public_key(entry)
        except ValueError:
            continue  # a key of another kind
        key_id = entry.get("kid")
        keys[key_id if isinstance(key_id, str) else make_key_id(key)] = key
    if not keys:
        raise ValueError("it holds no Ed25519 key")
    return keys
