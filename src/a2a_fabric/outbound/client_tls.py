"""TLS towards one agent: the node's client certificate for it, and the authority that signed the agent's.

`ClientTLS` is for connections of our own, `ClientTLSContent` for libraries that take the content of the files. Both
compare the files with what was read, so a renewed certificate needs no restart. Files that cannot be used (half
written, key and certificate of two pairs) change nothing, and the log says why."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import msgspec

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.files import FileVersion, read_file_version

_log = logging.getLogger(__name__)
_KEPT = "%s. The node goes on with the certificate that it read before"


class ClientTLSFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`endpoint.tls` of an agent; paths are relative to the configuration. `ca` is trusted instead of the system's."""

    cert: str | None = None
    key: str | None = None
    ca: str | None = None

    def resolve(self, base: Path) -> ClientTLSFiles:
        paths = [None if name is None else str(base / name) for name in (self.cert, self.key, self.ca)]
        return ClientTLSFiles(cert=paths[0], key=paths[1], ca=paths[2])

    def read_versions(self) -> list[FileVersion | None]:
        """Others when one of the files has changed."""
        return [None if path is None else read_file_version(Path(path)) for path in (self.cert, self.key, self.ca)]

    def build_context(self) -> ssl.SSLContext:
        """Raises ConfigError with the name of the file that cannot be used."""
        if (self.cert is None) != (self.key is None):
            raise ConfigError("tls: a client certificate needs both `cert` and `key`")
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.set_alpn_protocols(["http/1.1"])
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, "")
        except FileNotFoundError as exc:
            missing = next(path for path in (self.cert, self.key, self.ca) if path and not Path(path).exists())
            raise ConfigError(f"tls: {missing}: {exc.strerror}") from exc
        except (OSError, ValueError) as exc:
            names = ", ".join(path for path in (self.cert, self.key, self.ca) if path)
            raise ConfigError(f"tls: {names} cannot be used: {exc}") from exc
        return context


class ClientTLS:
    """Makes the TLS context of new connections. Raises ConfigError if the files cannot be used at the start."""

    def __init__(self, files: ClientTLSFiles) -> None:
        self._files = files
        self._versions = files.read_versions()
        self._context = files.build_context()

    def __call__(self) -> ssl.SSLContext:
        versions = self._files.read_versions()
        if versions != self._versions:
            self._versions = versions
            try:
                self._context = self._files.build_context()
            except ConfigError as error:
                _log.warning(_KEPT, error.message)
        return self._context


class ClientTLSContent:
    """The content of the files. Raises ConfigError if they cannot be used at the start."""

    def __init__(self, files: ClientTLSFiles) -> None:
        self._files = files
        self._versions = files.read_versions()
        self._read()

    def has_changed(self) -> bool:
        """Whether there is another content that can be used; then it is the one of this object from now on."""
        versions = self._files.read_versions()
        if versions == self._versions:
            return False
        self._versions = versions
        try:
            self._read()
        except ConfigError as error:
            _log.warning(_KEPT, error.message)
            return False
        return True

    def _read(self) -> None:
        files = self._files
        files.build_context()  # those who take the content do not say what is wrong with it
        try:
            contents = [None if path is None else Path(path).read_bytes() for path in (files.ca, files.key, files.cert)]
        except OSError as exc:
            raise ConfigError(f"tls: {exc.filename}: {exc.strerror}") from exc
        self.ca, self.key, self.cert = contents
