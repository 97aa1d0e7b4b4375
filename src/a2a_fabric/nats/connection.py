"""The connection to NATS: opened once per user, and reopened by itself for as long as that user wants it.

The library reconnects after most faults, but it gives up for good after some that pass (an expired credential that is
renewed, a server that closes the connection with an error). Then this module opens a new one. Subscriptions do not
survive that, so their owners subscribe again on `on_connect`.

    NatsUnavailable   the server is away, or did not answer in time: it may be asked again
    NatsRefused       the server answered, and asking again does not help: the credentials, the TLS
    NatsForbidden     the same, because this user lacks a right"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import (
    AuthorizationError,
    ConnectionClosedError,
    Error,
    MaxPayloadError,
    NoRespondersError,
    NoServersError,
)
from nats.errors import TimeoutError as NatsTimeout

from a2a_fabric.nats.address import NatsSettings
from a2a_fabric.nats.direct import DirectClient, DirectReader
from a2a_fabric.nats.nkeys import Signer, signer_from_creds, signer_from_seed

_log = logging.getLogger(__name__)

_PING_INTERVAL = 3  # seconds; a server that is silent for three of these is given up
_RECONNECT_PAUSE = 0.25
_CLOSE_TIMEOUT = 0.5
_LONGEST_PAUSE = 2.0
_PENDING_BYTES = 16 << 20  # that may wait for the socket
_MISSING_RIGHT = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')
_UNKNOWN_CERTIFICATE = re.compile(r"certificate verify failed: (.*?)\.? \(_ssl")
_REFUSALS = ("authorization", "authentication", "account", "user", "tls", "certificate")


class NatsUnavailable(Exception):
    """The server is away, or did not answer in time. Whether it got the request is not known."""


class NatsRefused(Exception):
    """The server refused the client. The text is a sentence for the operator."""


class NatsForbidden(NatsRefused):
    """The server accepted the client, and the client may not do this. The text is a sentence without a full stop."""


class _PlainTextServer(Error):
    """TLS was required by the settings, and the server does not offer it."""


class _Transport(TcpTransport):
    """The library's transport, which does not wait for a peer that never ends its side of TLS.

    What arrives goes to `take` first; see `nats.direct`.
    """

    def __init__(self, take: Callable[[bytes], bytes]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._take = take

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        async with asyncio.timeout(connect_timeout):
            loop = asyncio.get_running_loop()
            reader = DirectReader(buffer_size, self._take)
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await loop.create_connection(lambda: protocol, uri.hostname, uri.port)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer

    def __bool__(self) -> bool:
        return True  # else the client replaces it at its first connection

    async def wait_closed(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await super().wait_closed()  # type: ignore[no-untyped-call]
        except (TimeoutError, OSError):
            if self._io_writer is not None:
                self._io_writer.transport.abort()


class _Client(DirectClient):
    """The library's client, which never sends credentials in plain text if TLS is required."""

    def __init__(self, signer: Signer | None) -> None:
        super().__init__()
        self._transport = _Transport(self.take)
        if signer is not None and signer.jwt is None:
            self._public_nkey = signer.public_key

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise _PlainTextServer
        return super()._connect_command()

    @property
    def server_info(self) -> dict[str, Any]:
        return self._server_info

    def fail_requests(self) -> None:
        """The connection is lost, and the answers with it: those who wait for one may ask again at once."""
        for future in list(self._resp_map.values()):
            if not future.done():
                future.set_exception(ConnectionClosedError())


class NatsConnection:
    """Belongs to the event loop in which it was opened. `on_connect` is called after every (re)connection."""

    def __init__(self, settings: NatsSettings, client_name: str) -> None:
        self._settings = settings
        self._client_name = client_name
        self._tls = settings.build_tls()
        self._signer = _build_signer(settings)
        self._client: _Client | None = None
        self._connected = asyncio.Event()
        self._reopening: asyncio.Task[None] | None = None
        self._is_open = True
        self.last_error = ""
        self.on_connect: list[Callable[[], None]] = []
        self.on_disconnect: list[Callable[[], None]] = []
        # Called with `publish` or `subscription`, and the subject in lower case.
        self.on_missing_right: list[Callable[[str, str], None]] = []

    @classmethod
    async def open(cls, settings: NatsSettings, client_name: str, timeout: float) -> NatsConnection:
        """Try for `timeout` seconds. Raises ConfigError, NatsRefused, NatsUnavailable."""
        connection = cls(settings, client_name)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout
        while True:
            try:
                await connection._connect()
                return connection
            except NatsUnavailable:
                if loop.time() + _RECONNECT_PAUSE >= ends_at:
                    raise
            await asyncio.sleep(_RECONNECT_PAUSE)

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set() and self._client is not None and self._client.is_connected

    @property
    def client(self) -> DirectClient:
        """For subscriptions. Raises NatsUnavailable while there is no connection."""
        if self._client is None or not self.is_connected:
            raise NatsUnavailable(self.last_error or "the connection is closed")
        return self._client

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server said of itself: version, max_payload, cluster, connect_urls, jetstream."""
        return self._client.server_info if self._client is not None else {}

    @property
    def known_servers(self) -> int:
        """How many servers the address names, or the cluster has told of."""
        discovered = 0 if self._client is None else len(self._client.servers)
        return max(len(self._settings.servers), discovered)

    async def wait_until_connected(self, timeout: float) -> None:
        """Raises NatsUnavailable."""
        if self.is_connected:
            return
        try:
            async with asyncio.timeout(timeout):
                while not self.is_connected:
                    self._connected.clear()
                    await self._connected.wait()
        except TimeoutError:
            raise NatsUnavailable(self.last_error or "the server cannot be reached") from None

    async def request(self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None = None) -> Msg:
        """The reply. Waits for a connection if necessary, within the same time.

        Raises NatsUnavailable, NatsForbidden, and NatsRefused if the payload is larger than the server takes.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout
        await self.wait_until_connected(timeout)
        try:
            reply = await self.client.request(subject, payload, max(0.001, ends_at - loop.time()), headers=headers)
        except NoRespondersError as exc:
            raise NatsUnavailable("no server responds to this request") from exc
        except (NatsTimeout, TimeoutError) as exc:
            self._check_rights(subject)
            raise NatsUnavailable(self.last_error or f"no answer within {timeout:g} s") from exc
        except MaxPayloadError as exc:
            raise NatsRefused("the message is larger than `max_payload` of the server") from exc
        except (Error, OSError) as exc:
            raise NatsUnavailable(str(exc) or type(exc).__name__) from exc
        self.last_error = ""
        return reply

    def _check_rights(self, subject: str) -> None:
        """A server answers nothing to a client that may not ask; it only reports this as an error of the connection."""
        missing = _MISSING_RIGHT.search(self.last_error)
        if missing is not None and missing[1] == "publish" and missing[2] == subject.lower():
            raise NatsForbidden(f"this user may not publish to {subject}")
        if missing is not None and missing[1] == "subscription" and missing[2].startswith("_inbox."):
            raise NatsForbidden("this user may not subscribe to _INBOX.>, where answers arrive")

    async def reconnect(self) -> None:
        """Leave this connection for a new one, because it seems to be dead."""
        if self._client is not None:
            await self._client.force_reconnect()

    async def aclose(self) -> None:
        """Never raises; may be called twice."""
        self._is_open = False
        self._connected.clear()
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        if self._client is not None:
            await _close(self._client)

    async def _connect(self) -> None:
        """A new client. The first attempt reports its error at once; later, the client reconnects by itself."""
        client = _Client(self._signer)
        signer = self._signer
        options: dict[str, Any] = {} if self._tls is None else {"tls": self._tls}
        if signer is not None:
            options["signature_cb"] = signer.sign
            if signer.jwt is not None:
                options["user_jwt_cb"] = lambda: bytearray(signer.jwt.encode())
        try:
            async with asyncio.timeout(self._settings.connect_timeout * (len(self._settings.servers) + 1)):
                await client.connect(
                    list(self._settings.servers),
                    name=self._client_name,
                    user=self._settings.user,
                    password=self._settings.password,
                    token=self._settings.token,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # per server: each is tried once more before the error is reported
                    reconnect_time_wait=_RECONNECT_PAUSE,  # type: ignore[arg-type]  # floats work
                    connect_timeout=self._settings.connect_timeout,  # type: ignore[arg-type]
                    ping_interval=_PING_INTERVAL,
                    pending_size=_PENDING_BYTES,
                    error_cb=self._note_error,
                    disconnected_cb=self._note_disconnect,
                    reconnected_cb=self._note_connect,
                    closed_cb=self._note_close,
                    **options,
                )
        except Exception as exc:
            is_vague = isinstance(exc, TimeoutError | NoServersError) or not str(exc)
            reason = self.last_error if is_vague else str(exc)
            await _close(client)
            raise _translate(exc, reason or type(exc).__name__) from exc
        client.options.update(allow_reconnect=True, max_reconnect_attempts=-1)
        self._client = client
        await self._note_connect()

    async def _reopen(self) -> None:
        pause = _RECONNECT_PAUSE
        while self._is_open:
            try:
                await self._connect()
                return
            except (NatsUnavailable, NatsRefused) as exc:
                self.last_error = str(exc)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _note_error(self, exc: Exception) -> None:
        self.last_error = str(exc) or type(exc).__name__
        if self.on_missing_right and (missing := _MISSING_RIGHT.search(self.last_error)) is not None:
            for listener in self.on_missing_right:
                listener(missing[1], missing[2])

    async def _note_disconnect(self) -> None:
        if self._is_open and self._connected.is_set():
            self._connected.clear()
            _log.warning("the connection to NATS is lost (%s); reconnecting", self.last_error or "closed")
            if self._client is not None:
                self._client.fail_requests()
            for listener in self.on_disconnect:
                listener()

    async def _note_connect(self) -> None:
        if not self._is_open:
            return
        self.last_error = ""
        self._connected.set()
        for listener in self.on_connect:
            listener()

    async def _note_close(self) -> None:
        """The library gave up."""
        await self._note_disconnect()
        if self._is_open and (self._reopening is None or self._reopening.done()) and self._client is not None:
            self._reopening = asyncio.create_task(self._reopen())


async def _close(client: Client) -> None:
    """Never raises. The library may swallow a cancellation, so it is not waited for without a limit."""
    task = asyncio.create_task(client.close())
    _, pending = await asyncio.wait({task}, timeout=2 * _CLOSE_TIMEOUT)
    for each in pending:
        each.cancel()
    if task.done():
        task.exception()


def _build_signer(settings: NatsSettings) -> Signer | None:
    if settings.creds is not None:
        return signer_from_creds(settings.creds)
    return None if settings.nkey is None else signer_from_seed(settings.nkey)


def _translate(error: Exception, reason: str) -> Exception:
    if isinstance(error, _PlainTextServer):
        return NatsRefused("the server does not require TLS, and the address asks for it: set `tls` in the server")
    text = reason.lower()
    if isinstance(error, AuthorizationError) or "authorization violation" in text:
        return NatsRefused("the credentials are wrong or missing (Authorization Violation): check the address")
    if (unknown := _UNKNOWN_CERTIFICATE.search(reason)) is not None:
        return NatsRefused(
            f"the certificate of the server is not accepted ({unknown[1]}): name its authority with ca=FILE, and the "
            "host as the certificate does"
        )
    if "certificate required" in text:
        return NatsRefused("the server wants a certificate of the node: name it with cert=FILE and key=FILE")
    if any(word in text for word in _REFUSALS):
        return NatsRefused(f"{reason}. Check the credentials and TLS")
    return NatsUnavailable("the connection was closed" if isinstance(error, ConnectionClosedError) else reason)
