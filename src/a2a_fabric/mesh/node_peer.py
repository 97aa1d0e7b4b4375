"""Another node of the mesh as a peer: calls are messages of the mailbox, all else is HTTP over them, as for workers.

Calls go over HTTP instead if both nodes are configured so (`mesh.direct`), and over NATS if that fails before the node
has seen the call.

Most replies are one message with one frame, so a call needs neither a stream nor a reader of frames."""

from __future__ import annotations

import asyncio

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import AgentOffline, UpstreamFailed
from a2a_fabric.core.result import Result
from a2a_fabric.doors.edge import REFUSED_HEADER
from a2a_fabric.mesh.client import GRACE, PeerClient
from a2a_fabric.mesh.direct import DirectLink
from a2a_fabric.mesh.frames import CallMode, ResultFrame, encode_call, read_result, read_single_frame
from a2a_fabric.mesh.mailbox import CALL_TARGET, NodeMailbox
from a2a_fabric.mesh.messages import ReplyMessage
from a2a_fabric.mesh.sent_requests import SentRequest
from a2a_fabric.outbound.port import ConnectFailed, Interrupted, OutboundError

_NO_HEADERS: dict[str, str] = {}


class NodePeer(PeerClient):
    """Counts what this node has sent there and is not answered (`under_way`)."""

    def __init__(self, node: str, mailbox: NodeMailbox, reply_bytes: int, direct: DirectLink | None = None) -> None:
        super().__init__(f"node '{node}'", "", mailbox.client_for(node), reply_bytes)
        self._node = node
        self._mailbox = mailbox
        self.direct = direct
        self.under_way = 0

    async def call(self, call: Call, emit: Emit, mode: CallMode) -> Result:
        timeout = call.target.timeout_ms / 1000 + GRACE
        self.under_way += 1
        sent: SentRequest | None = None
        try:
            if self.direct is not None and mode == "node" and self.direct.is_usable:
                loop = asyncio.get_running_loop()
                ends_at = loop.time() + timeout
                try:
                    return await self.direct.call(call, emit, timeout)
                except ConnectFailed:
                    timeout = ends_at - loop.time()  # it certainly did not arrive
            sent = self._mailbox.open_request(self._node)
            self._mailbox.deadlines.start(sent, timeout)
            await sent.send("POST", CALL_TARGET, _NO_HEADERS, encode_call(call, mode))
            return await self._read_result(sent, emit)
        except OutboundError as exc:
            raise self._translate(exc, timeout) from exc
        finally:
            self.under_way -= 1
            if sent is not None:
                self._mailbox.deadlines.stop(sent)
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

        async def next_chunk() -> bytes:
            while not sent.is_over:
                if body := (await sent.next_piece()).body:
                    return body
            return b""

        result = await read_result(piece.body or await next_chunk(), next_chunk, self._reply_bytes, emit)
        if result is None:
            raise self._build_interrupted()
        return result
