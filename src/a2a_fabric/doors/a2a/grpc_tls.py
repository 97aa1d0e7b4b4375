"""The node's certificate for gRPC, which reads no files and knows no passwords."""

from __future__ import annotations

from pathlib import Path

import grpc
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.doors.context import TLSFiles


def credentials(files: TLSFiles) -> grpc.ServerCredentials:
    """Raises ConfigError."""
    key, chain = _content(files.key), _content(files.cert)
    return grpc.ssl_server_credentials([(_opened(key, files), chain)])


def _opened(key: bytes, files: TLSFiles) -> bytes:
    try:
        private = load_pem_private_key(key, files.password.encode() if files.password else None)
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"tls: {files.key} is no private key, or its password is another: {exc}") from exc
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise ConfigError(f"tls: {file}: {exc.strerror}") from exc
