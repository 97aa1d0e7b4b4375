"""Encrypts what is kept of logins, with a key of this node or of all nodes that share a store.

Each value is bound to a name (the principal and the agent): a row that is copied to another principal cannot
be decrypted. The key is in the environment variable FABRIC_LOGIN_KEY, or in a file of the state folder that
only the node's user can read."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import load_module
from a2a_fabric.identity.keyfile import KeyFile

KEY_VARIABLE = "FABRIC_LOGIN_KEY"
KEY_FILE = "login.key"
_NONCE_BYTES = 12
_MIN_KEY_BYTES = 32
_VERSION = b"\x01"


class WrongKey(Exception):
    """The value was encrypted with another key or under another name, or it was changed."""


class LoginCipher:
    def __init__(self, key: bytes) -> None:
        # Loaded on demand: most nodes need no cryptography.
        self._cipher = load_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM(
            hashlib.sha256(b"a2a-fabric logins\x00" + key).digest()
        )
        self._invalid_tag = load_module("cryptography.exceptions").InvalidTag

    def encrypt(self, value: bytes, name: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        encrypted: bytes = self._cipher.encrypt(nonce, value, name.encode())
        return _VERSION + nonce + encrypted

    def decrypt(self, encrypted: bytes, name: str) -> bytes:
        """Raises WrongKey."""
        start = len(_VERSION) + _NONCE_BYTES
        if not encrypted.startswith(_VERSION) or len(encrypted) < start:
            raise WrongKey
        try:
            value: bytes = self._cipher.decrypt(encrypted[len(_VERSION) : start], encrypted[start:], name.encode())
        except self._invalid_tag as exc:
            raise WrongKey from exc
        return value


def load_cipher(environ: Mapping[str, str], folder: Path, *, in_memory: bool) -> LoginCipher:
    """The key of the environment, or of the file, which is created on first use. Raises ConfigError.

    A store in memory needs no key that outlives the process.
    """
    if configured := environ.get(KEY_VARIABLE):
        return LoginCipher(_decode_key(configured))
    if in_memory:
        return LoginCipher(secrets.token_bytes(_MIN_KEY_BYTES))
    file = KeyFile(folder / KEY_FILE)
    return LoginCipher((file.read() or file.create()).encode())


def _decode_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.strip().replace("-", "+").replace("_", "/") + "==", validate=False)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigError(
            f"{KEY_VARIABLE}: it needs 32 random bytes as base64. Make some with: openssl rand -base64 32"
        )
    return key
