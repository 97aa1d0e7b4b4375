"""Certificates of gRPC channels, which take them when they are opened: after a renewal, calls need a new channel.

Imported only where grpc is installed."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from a2a_fabric.core.errors import AgentOffline, ConfigError
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.outbound.client_tls import ClientTLSContent, ClientTLSFiles

_RUNNING_CALLS_TIMEOUT = 3600.0  # seconds after which calls on a channel that was replaced are cancelled


class ChannelTLS:
    """The credentials of one agent's channel, without `files` those of the system, and the channels before it."""

    def __init__(self, files: ClientTLSFiles | None) -> None:
        self._files = files
        self._content: ClientTLSContent | None = None
        self._replaced: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def load_credentials(self) -> grpc.ChannelCredentials:
        """Raises AgentOffline for files that cannot be used."""
        if self._files is None:
            return grpc.ssl_channel_credentials()
        try:
            content = self._content = ClientTLSContent(self._files)
        except ConfigError as exc:
            raise AgentOffline(exc.message) from exc
        return grpc.ssl_channel_credentials(content.ca, content.key, content.cert)

    def has_changed(self) -> bool:
        """Whether a channel that was opened with these credentials should be replaced."""
        return self._content is not None and self._content.has_changed()

    def close_when_idle(self, channel: grpc.aio.Channel) -> None:
        """Calls that run on a channel go on; it is closed after the last of them."""
        closing = asyncio.ensure_future(channel.close(_RUNNING_CALLS_TIMEOUT))
        self._replaced[closing] = channel
        closing.add_done_callback(lambda task: self._replaced.pop(task, None))

    async def aclose(self) -> None:
        replaced = dict(self._replaced)
        await cancel_and_wait(*replaced)
        for channel in replaced.values():
            await channel.close()
