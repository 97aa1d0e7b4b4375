"""TLS towards one agent: the node's client certificate for it, and the authority that signed the agent's.

The files are compared with what was read at each new connection, so a renewed certificate needs no restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import msgspec

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.file_version import FileVersion, read_file_version

_log = logging.getLogger(__name__)


class ClientTLSFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`endpoint.tls` of an agent; paths are relative to the configuration. `ca` is trusted instead of the system's."""

    cert: str | None = None
    key: str | None = None
    ca: str | None = None

    def resolve(self, base: Path) -> ClientTLSFiles:
        paths = [None if name is None else str(base / name) for name in (self.cert, self.key, self.ca)]
        return ClientTLSFiles(cert=paths[0], key=paths[1], ca=paths[2])


class ClientTLS:
    """Makes the TLS context of new connections. Raises ConfigError if the files cannot be used at the start."""

    def __init__(self, files: ClientTLSFiles) -> None:
        self._files = files
        self._versions = self._read_versions()
        self._context = self._build()

    def __call__(self) -> ssl.SSLContext:
        versions = self._read_versions()
        if versions != self._versions:
            self._versions = versions
            try:
                self._context = self._build()
            except ConfigError as error:
                _log.warning("%s. The node goes on with the certificate that it read before", error.message)
        return self._context

    def _read_versions(self) -> list[FileVersion | None]:
        files = self._files
        return [None if path is None else read_file_version(Path(path)) for path in (files.cert, files.key, files.ca)]

    def _build(self) -> ssl.SSLContext:
        files = self._files
        if (files.cert is None) != (files.key is None):
            raise ConfigError("tls: a client certificate needs both `cert` and `key`")
        try:
            context = ssl.create_default_context(cafile=files.ca)
            context.set_alpn_protocols(["http/1.1"])
            if files.cert is not None:
                context.load_cert_chain(files.cert, files.key, "")
        except FileNotFoundError as exc:
            missing = next(path for path in (files.cert, files.key, files.ca) if path and not Path(path).exists())
            raise ConfigError(f"tls: {missing}: {exc.strerror}") from exc
        except (OSError, ValueError) as exc:
            names = ", ".join(path for path in (files.cert, files.key, files.ca) if path)
            raise ConfigError(f"tls: {names} cannot be used: {exc}") from exc
        return context
