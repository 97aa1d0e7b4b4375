"""Another node of the mesh as a peer: calls are messages of the mailbox, all else is HTTP over them, as for workers.

Most replies are one message with one frame, so a call needs neither a stream nor a reader of frames."""

from __future__ import annotations

import asyncio

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import AgentOffline, UpstreamFailed
from a2a_fabric.core.result import Result
from a2a_fabric.mesh.client import GRACE, PeerClient
from a2a_fabric.mesh.frames import (
    CallMode,
    ErrorFrame,
    EventFrame,
    FrameReader,
    ResultFrame,
    encode_call,
    error_from_frame,
    read_single_frame,
)
from a2a_fabric.mesh.mailbox import CALL_TARGET, NodeMailbox
from a2a_fabric.mesh.messages import REFUSED_HEADER, ReplyMessage
from a2a_fabric.mesh.sent_requests import SentRequest
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, Interrupted, OutboundError

_NO_HEADERS: dict[str, str] = {}


class NodePeer(PeerClient):
    """Counts what this node has sent there and is not answered (`under_way`)."""

    def __init__(self, node: str, mailbox: NodeMailbox, reply_bytes: int) -> None:
        super().__init__(f"node '{node}'", "", mailbox.client_for(node), reply_bytes)
        self._node = node
        self._mailbox = mailbox
        self.under_way = 0

    async def call(self, call: Call, emit: Emit, mode: CallMode) -> Result:
        timeout = call.target.timeout_ms / 1000 + GRACE
        sent = self._mailbox.open_request(self._node)
        expiry = asyncio.get_running_loop().call_later(timeout, sent.fail, DeadlineExceeded("The time is over"))
        self.under_way += 1
        try:
            await sent.send("POST", CALL_TARGET, _NO_HEADERS, encode_call(call, mode))
            return await self._read_result(sent, emit)
        except OutboundError as exc:
            raise self._translate(exc, timeout) from exc
        finally:
            self.under_way -= 1
            expiry.cancel()
            sent.close()

    async def _read_result(self, sent: SentRequest, emit: Emit) -> Result:
        """Raises OutboundError, and FabricError: the peer's own."""
        piece = await sent.next_piece()
        if not isinstance(piece, ReplyMessage):
            raise Interrupted(f"Node '{self._node}' answered without a head")
        if REFUSED_HEADER in piece.headers:
            raise ConnectFailed(f"Node '{self._node}' takes no requests now")
        if piece.status == 503:
            raise AgentOffline(f"{self.name} takes no requests now")
        if piece.status != 200:
            raise UpstreamFailed(f"{self.name} answered with HTTP {piece.status}")
        if piece.is_last and isinstance(frame := read_single_frame(piece.body, self._reply_bytes), ResultFrame):
            return frame.result
        reader, body = FrameReader(self._reply_bytes), piece.body
        while True:
            for frame in reader.feed(body):
                if isinstance(frame, ResultFrame):
                    return frame.result
                if isinstance(frame, ErrorFrame):
                    raise error_from_frame(frame)
                if isinstance(frame, EventFrame):
                    await emit(frame.event)
            if sent.is_over:
                raise self._build_interrupted()
            body = (await sent.next_piece()).body
