"""The node's own TLS: its certificate, and whose client certificates it accepts. Both follow their files.

The files are compared with what was read at each handshake, so a renewed certificate counts from the next connection
on; open connections go on. Files that cannot be used (half written, key and certificate of two pairs) change nothing,
and the log says why."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.doors.context import TLSFiles

_log = logging.getLogger(__name__)
_VERIFY_MODES = {"off": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class ServerTLS:
    """`context` is the one that the server listens with; each handshake continues with the newest one.

    `protocols` are those that the client may choose from (ALPN), if there is more to know than that it speaks TLS.
    """

    def __init__(self, files: TLSFiles, protocols: Sequence[str] = ()) -> None:
        """Raises ConfigError."""
        self.files = files
        self._protocols = protocols
        self._versions = files.versions
        self._current = build_context(files, protocols)
        self.context = build_context(files, protocols)
        self.context.sni_callback = self._choose_context

    @property
    def asks_certificate(self) -> bool:
        return self.files.client_certificates != "off"

    def reload(self) -> None:
        """Read the files again now. Raises ConfigError, and keeps what was read before."""
        self.prepare(self.files)()

    def prepare(self, files: TLSFiles) -> Callable[[], None]:
        """Read files; the function puts them into effect. Raises ConfigError."""
        versions, context = files.versions, build_context(files, self._protocols)
        if self.asks_certificate != (files.client_certificates != "off"):
            raise ConfigError("tls.client_certificates cannot be switched on or off while the node runs. Restart it")

        def take_effect() -> None:
            self.files, self._versions, self._current = files, versions, context
            # Whether a client must show a certificate is settled before its handshake goes on with another context.
            self.context.verify_mode = context.verify_mode

        return take_effect

    def _choose_context(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        """Called by the TLS library at each handshake, with or without a server name."""
        versions = self.files.versions
        if versions != self._versions:
            self._versions = versions
            try:
                self._current = build_context(self.files, self._protocols)
                _log.info("tls: the certificate was read again from %s", self.files.cert)
            except ConfigError as error:
                _log.warning("%s. The node goes on with the certificate that it read before", error.message)
        connection.context = self._current


def build_context(files: TLSFiles, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """The TLS context of a server. Raises ConfigError with the name of the file that cannot be used."""
    for file in (files.cert, files.key, files.client_ca):
        try:
            if file is not None:
                file.open("rb").close()
        except OSError as exc:
            raise ConfigError(f"tls: {file}: {exc.strerror}") from exc
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        context.set_alpn_protocols(list(protocols))
    try:
        context.load_cert_chain(files.cert, files.key, files.password or "")
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError(f"tls: {files.cert} and {files.key} are no certificate with its key: {exc}") from exc
    if files.client_certificates == "off":
        return context
    if files.client_ca is None:
        raise ConfigError("tls: client_certificates needs `client_ca`, a file with the authorities that sign them")
    try:
        context.load_verify_locations(files.client_ca)
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError(f"tls: {files.client_ca} holds no certificates: {exc}") from exc
    context.verify_mode = _VERIFY_MODES[files.client_certificates]
    # A resumed session would bring an old certificate back, past an authority that was removed since.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context
