"""The log: one JetStream stream, to which a message is appended only behind the message that its writer knows.

What holds:
- An append says which sequence it follows. The server stores it there or nowhere, so of several writers one wins.
- If the answer to an append is lost, the slot tells: the message that is stored there is the writer's own or another.
- Messages are read in order, without gaps; a gap is an error unless a snapshot covers it."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from a2a_fabric.nats.connection import NatsConnection, NatsUnavailable
from a2a_fabric.stores.nats.errors import (
    MAJORITY_ADVICE,
    MESSAGE_NOT_FOUND,
    NO_LEADER,
    WRONG_LAST_SEQUENCE,
    ApiError,
    JetStreamRefused,
)

T = TypeVar("T")

_API = "$JS.API"
REQUEST_TIMEOUT = 2.0
_ATTEMPTS = (1.0, 1.0, 1.0, 1.0, 2.0, 4.0)  # seconds: requests are lost while a leader is elected, or answered slowly
_HEARTBEAT = 2.0  # seconds between two signs of life of the server's consumer
_SILENCE = 3.5 * _HEARTBEAT
_SECOND = 1_000_000_000


class StreamState(msgspec.Struct, frozen=True):
    first_seq: int = 0
    last_seq: int = 0
    bytes: int = 0
    messages: int = 0
    subjects: dict[str, int] = {}


class StreamInfo(msgspec.Struct, frozen=True):
    state: StreamState = StreamState()
    config: dict[str, Any] = {}
    created: str = ""
    ts: datetime | None = None
    total: int = 0


class ServerClock:
    """The time of the server, so that nodes whose clocks differ agree about leases."""

    def __init__(self) -> None:
        self._offset = 0.0

    def __call__(self) -> float:
        return time.time() + self._offset

    def adjust(self, info: StreamInfo, asked_at: float, answered_at: float) -> None:
        """The server's time was read between these two moments of our clock; smaller differences are not known."""
        if info.ts is None:
            return
        round_trip = answered_at - asked_at
        offset = info.ts.timestamp() - (asked_at + answered_at) / 2
        if abs(offset - self._offset) > max(round_trip, 0.005):
            self._offset = offset if abs(offset) > max(round_trip, 0.005) else 0.0


class LogMessage(NamedTuple):
    sequence: int
    data: bytes


class SequenceConflict(Exception):
    """Another writer's message is in the slot. `head` is at least the last sequence of the log."""

    def __init__(self, head: int) -> None:
        super().__init__(f"the log has {head} messages")
        self.head = head


class _PubAck(msgspec.Struct, frozen=True):
    seq: int = 0
    error: ApiError | None = None


class _ErrorReply(msgspec.Struct, frozen=True):
    error: ApiError | None = None


class _StoredMessage(msgspec.Struct, frozen=True):
    seq: int = 0
    data: str = ""


class _MessageReply(msgspec.Struct, frozen=True):
    message: _StoredMessage = _StoredMessage()


_decode_ack = msgspec.json.Decoder(_PubAck).decode
_decode_error = msgspec.json.Decoder(_ErrorReply).decode
_decode_info = msgspec.json.Decoder(StreamInfo).decode
_decode_message = msgspec.json.Decoder(_MessageReply).decode


class JetStream:
    """Requests to the JetStream API. Every method raises NatsUnavailable, NatsRefused and JetStreamRefused."""

    def __init__(self, connection: NatsConnection) -> None:
        self.connection = connection

    async def ask(self, subject: str, body: Any = None, timeout: float = REQUEST_TIMEOUT) -> bytes:
        payload = b"" if body is None else msgspec.json.encode(body)
        reply = await self.connection.request(f"{_API}.{subject}", payload, timeout)
        error = _decode_error(reply.data).error
        if error is not None:
            raise _build_refusal(error)
        return bytes(reply.data)

    async def read_info(self, stream: str, **options: Any) -> StreamInfo:
        return _decode_info(await self.ask(f"STREAM.INFO.{stream}", options or None))

    async def publish(
        self, subject: str, data: bytes, expected: int | None = None, timeout: float = REQUEST_TIMEOUT
    ) -> int:
        """The sequence. Raises SequenceConflict if the last sequence is not the expected one."""
        headers = None if expected is None else {"Nats-Expected-Last-Sequence": str(expected)}
        reply = await self.connection.request(subject, data, timeout, headers)
        ack = _decode_ack(reply.data)
        if ack.error is None:
            return ack.seq
        if ack.error.err_code == WRONG_LAST_SEQUENCE:
            raise SequenceConflict(int(ack.error.description.rpartition(" ")[2] or 0))
        raise _build_refusal(ack.error)

    async def read_message(self, stream: str, **query: Any) -> LogMessage | None:
        """From the leader. None if there is no such message."""
        try:
            reply = await self.ask(f"STREAM.MSG.GET.{stream}", query)
        except JetStreamRefused as exc:
            if exc.err_code == MESSAGE_NOT_FOUND:
                return None
            raise
        message = _decode_message(reply).message
        return LogMessage(message.seq, base64.b64decode(message.data))

    async def purge(self, stream: str, **query: Any) -> None:
        await self.ask(f"STREAM.PURGE.{stream}", query)


def _build_refusal(error: ApiError) -> Exception:
    """While a cluster has no leader it may be asked again, as if it had not answered."""
    if error.err_code in NO_LEADER:
        return NatsUnavailable(f"{error.description}; {MAJORITY_ADVICE}")
    return JetStreamRefused(error)


class StreamLog:
    """Appends to one stream, and follows it. Belongs to the event loop in which it was created."""

    def __init__(self, jetstream: JetStream, stream: str, subject: str) -> None:
        self.jetstream = jetstream
        self.stream = stream
        self.subject = subject
        self.follower = LogFollower(jetstream, stream)

    async def read_info(self, ends_at: float) -> StreamInfo:
        """Raises NatsUnavailable when the time is up."""

        async def attempt(timeout: float) -> StreamInfo:
            return _decode_info(await self.jetstream.ask(f"STREAM.INFO.{self.stream}", timeout=timeout))

        return await _repeat(attempt, ends_at)

    async def append(self, message: bytes, after: int, ends_at: float) -> None:
        """Returns once the message is stored behind sequence `after`, and on disk as far as the server promises it.

        Raises SequenceConflict, JetStreamRefused, and NatsUnavailable if that is not known when the time is up.
        """
        is_repeated = False

        async def attempt(timeout: float) -> None:
            nonlocal is_repeated
            try:
                await self.jetstream.publish(self.subject, message, after, timeout)
            except SequenceConflict as exc:
                if exc.head < after:
                    raise NatsUnavailable("the server that leads now has not read its whole log yet") from exc
                if not is_repeated or not await self._is_stored(message, after + 1):
                    raise SequenceConflict(max(exc.head, after + 1)) from exc
            finally:
                is_repeated = True  # from now on the server may have it

        await _repeat(attempt, ends_at)

    async def read(self, sequence: int) -> LogMessage | None:
        return await self.jetstream.read_message(self.stream, seq=sequence)

    async def _is_stored(self, message: bytes, sequence: int) -> bool:
        stored = await self.read(sequence)
        if stored is None:
            raise NatsUnavailable("the server that leads now has not read its whole log yet")
        return stored.data == message


async def _repeat(attempt: Callable[[float], Awaitable[T]], ends_at: float) -> T:
    """Try until the time is up, each time with a limit of its own. Raises what the last attempt raised."""
    loop = asyncio.get_running_loop()
    for limit in chain(_ATTEMPTS, repeat(_ATTEMPTS[-1])):
        try:
            return await attempt(max(0.05, min(limit, ends_at - loop.time())))
        except NatsUnavailable:
            if loop.time() >= ends_at:
                raise
        await asyncio.sleep(0.05)
    raise AssertionError("the attempts never end")


class LogFollower:
    """Hands out the messages of a stream in order. After every fault it begins again behind the last one.

    `on_message` is called when there is something to take.
    """

    def __init__(self, jetstream: JetStream, stream: str) -> None:
        self._jetstream = jetstream
        self._stream = stream
        self._subscription: Subscription | None = None
        self._generation = 0
        self._next = 1  # sequence of the message that comes next
        self._messages: deque[LogMessage | str] = deque()  # a string is a flow control request to answer
        self._heard_at = 0.0
        self._is_stale = True
        self.on_message: Callable[[], None] = lambda: None

    @property
    def needs_start(self) -> bool:
        """There is no subscription, or it has been silent or incomplete."""
        is_silent = asyncio.get_running_loop().time() - self._heard_at > _SILENCE
        return self._is_stale or is_silent

    def mark_stale(self) -> None:
        """The connection was lost: messages may have been missed."""
        self._is_stale = True

    async def start(self, sequence: int) -> None:
        """Begin with this sequence. Raises NatsUnavailable, JetStreamRefused."""
        await self.stop()
        self._generation += 1
        generation = self._generation
        self._messages.clear()
        self._next = sequence
        client = self._jetstream.connection.client
        inbox = client.new_inbox()

        async def receive(message: Msg) -> None:
            if generation == self._generation:
                self._receive(message)

        try:
            self._subscription = await client.subscribe(inbox, cb=receive)
        except NatsError as exc:
            raise NatsUnavailable(str(exc) or type(exc).__name__) from exc
        config = {
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": sequence,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": int(_HEARTBEAT * _SECOND),
            "inactive_threshold": 30 * _SECOND,
            "mem_storage": True,
            "num_replicas": 1,
        }
        self._heard_at = asyncio.get_running_loop().time()
        self._is_stale = False
        await self._jetstream.ask(f"CONSUMER.CREATE.{self._stream}", {"stream_name": self._stream, "config": config})

    async def take(self, limit: int) -> list[LogMessage]:
        """The next messages. Flow control is answered as they are taken, so that the server never sends too much."""
        taken: list[LogMessage] = []
        while self._messages and len(taken) < limit:
            message = self._messages.popleft()
            if isinstance(message, LogMessage):
                taken.append(message)
            else:
                await self._answer(message)
        return taken

    async def stop(self) -> None:
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            with suppress(NatsError, OSError):
                await subscription.unsubscribe()

    def _receive(self, message: Msg) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        status = (message.headers or {}).get("Status")
        if status is not None:
            reply = message.reply or (message.headers or {}).get("Nats-Consumer-Stalled", "")
            if status == "100" and reply:
                self._messages.append(reply)
                self.on_message()
            return
        tokens = message.reply.split(".")
        sequence = int(tokens[5] if len(tokens) == 9 else tokens[7])  # the longer form names the domain and the account
        if sequence != self._next:
            self._is_stale = True  # one was lost, or purged: begin again
            self.on_message()
            return
        self._next += 1
        self._messages.append(LogMessage(sequence, message.data))
        self.on_message()

    async def _answer(self, reply: str) -> None:
        with suppress(NatsError, NatsUnavailable):
            await self._jetstream.connection.client.publish(reply)
