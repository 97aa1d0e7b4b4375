"""Unread streams over gRPC: they cost next to nothing, and are given up after a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import SendMessageRequest, StreamResponse, SubscribeToTaskRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from a2a_fabric.core.call import Principal
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.doors.a2a.grpc import GrpcEdgeInterceptor
from tests.doors.a2a_clients import rpc
from tests.doors.test_a2a_slow_readers import WORD, Chatter, all_done, asking, over_rpc, said
from tests.doors.test_slow_readers import memory
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running

METADATA = (("authorization", f"Bearer {PSK}"), ("x-a2a-agent", "chatter"))


@asynccontextmanager
async def chatting(folder: Path, **more: Any) -> AsyncIterator[tuple[Node, Chatter, grpc.aio.Channel]]:
    chatter = Chatter()
    doors = [{"kind": "a2a", "grpc": "127.0.0.1:0", **more}]
    async with running(chatter.agent(), config={"doors": doors, "store": f"sqlite:{folder / 'fabric.db'}"}) as node:
        card = (await node.send("GET", "/agents/chatter/.well-known/agent-card.json")).json
        [place] = {each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"}
        async with grpc.aio.insecure_channel(place) as channel:
            try:
                yield node, chatter, channel
            finally:
                chatter.may_end.set()


def stub(channel: grpc.aio.Channel) -> Any:
    return a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


def old_stub(channel: grpc.aio.Channel) -> Any:
    return a2a_v0_3_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


def sending(words: int) -> SendMessageRequest:
    return ParseDict(asking(words, "mutter"), SendMessageRequest())


def sending_as_0_3(words: int) -> old_pb.SendMessageRequest:
    message = asking(words, "mutter")["message"]
    del message["parts"]
    message["content"] = [{"data": {"data": {"words": words}}}]
    return ParseDict({"request": message}, old_pb.SendMessageRequest())


async def words_of(stream: AsyncIterator[StreamResponse]) -> str:
    words: list[str] = []
    async with asyncio.timeout(WAIT_TIMEOUT):
        async for event in stream:
            if event.HasField("artifact_update"):
                words += [part.text for part in event.artifact_update.artifact.parts]
    return "".join(words)


async def begun(*streams: Any) -> None:
    """Each has an answer under way, of which nothing is read."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        for each in streams:
            await each.initial_metadata()


async def test_of_a_message_they_cost_no_more_than_the_tasks_themselves(tmp_path: Path) -> None:
    """Twelve megabytes for each of ten, in both versions; others are answered meanwhile."""
    async with chatting(tmp_path) as (node, _, channel):
        before = memory()
        new = [stub(channel).SendStreamingMessage(sending(3000), metadata=METADATA) for _ in range(5)]
        old = [old_stub(channel).SendStreamingMessage(sending_as_0_3(3000), metadata=METADATA) for _ in range(5)]
        await begun(*new, *old)
        await all_done(node, 10)
        assert memory() - before < 125
        told = stub(channel).SendStreamingMessage(sending(3), metadata=METADATA)
        assert (await words_of(told)).endswith("done")


async def test_of_a_task_that_has_said_much_they_hold_next_to_nothing(tmp_path: Path) -> None:
    """Ten megabytes that were said already, to a dozen who follow it; who reads gets all of them."""
    async with chatting(tmp_path) as (node, chatter, channel):
        params = {**asking(2500, "talk"), "configuration": {"returnImmediately": True}}
        task = (await rpc(node, "SendMessage", params, agent="chatter"))["result"]["task"]
        await said(node, task["id"], 2500)
        before = memory()
        asked = SubscribeToTaskRequest(id=task["id"])
        await begun(*[stub(channel).SubscribeToTask(asked, metadata=METADATA) for _ in range(12)])
        assert memory() - before < 50
        reading = stub(channel).SubscribeToTask(asked, metadata=METADATA)
        await begun(reading)
        chatter.may_end.set()
        assert await words_of(reading) == WORD * 2500


async def heard_once_there_is_room(channel: grpc.aio.Channel) -> str:
    """By another caller, which is told that there is none until then."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            told = stub(channel).SendStreamingMessage(sending(1), metadata=METADATA)
            with suppress(grpc.aio.AioRpcError):
                return await words_of(told)
            assert await told.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_reader_who_takes_nothing_is_given_up_and_leaves_room_for_others(tmp_path: Path) -> None:
    async with chatting(tmp_path, max_streams=1, read_seconds=0.5) as (_, _, channel):
        idle = stub(channel).SendStreamingMessage(sending(3000), metadata=METADATA)
        await begun(idle)
        assert (await heard_once_there_is_room(channel)).endswith("done")
        with pytest.raises(grpc.aio.AioRpcError) as given_up:
            await words_of(idle)
        assert given_up.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_and_so_is_one_over_http(tmp_path: Path) -> None:
    idle = over_rpc("SendStreamingMessage", asking(3000, "mutter"))
    async with (
        chatting(tmp_path, max_streams=1, read_seconds=0.5) as (node, _, channel),
        node.raw(idle) as (reader, _),
        asyncio.timeout(WAIT_TIMEOUT),
    ):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert (await heard_once_there_is_room(channel)).endswith("done")


WAITING = "/lf.a2a.v1.A2AService/GetTask"


async def end_of(call: Any) -> tuple[str, str]:
    async with asyncio.timeout(WAIT_TIMEOUT):
        return (await call.code()).name, await call.details()


@pytest.mark.parametrize("method", [WAITING, "/a2a.v1.A2AService/GetTask", "/lf.a2a.v1.A2AService/SubscribeToTask"])
async def test_a_stranger_is_refused_before_its_message_is_read(tmp_path: Path, method: str) -> None:
    """Else it would hold a place among the requests of all callers for as long as it sends nothing."""
    async with chatting(tmp_path) as (_, _, channel):
        for metadata in ((), (("authorization", "Bearer wrong-key-of-a-stranger"),)):
            call = channel.stream_stream(method)(metadata=metadata)
            assert (await end_of(call))[0] == "UNAUTHENTICATED"


async def test_a_caller_that_sends_no_message_is_given_up_and_has_a_share_until_then() -> None:
    """Two of four requests may wait for their messages, because a caller may hold as many as are free."""
    async with waiting_server(capacity=4, share=0.5, message_timeout=0.5) as (channel, limit):
        calls = [channel.stream_unary(WAITING)() for _ in range(3)]
        ends = sorted([await end_of(call) for call in calls])
        assert [code for code, _ in ends] == ["DEADLINE_EXCEEDED"] * 2 + ["RESOURCE_EXHAUSTED"]
        assert ends[0][1] == "The message did not arrive within 0.5 seconds"
        empty = channel.stream_unary(WAITING)()
        await empty.done_writing()
        assert await end_of(empty) == ("INVALID_ARGUMENT", "Invalid request: it has no message")
        assert await channel.unary_unary(WAITING)(b"ping") == b"ping"
        assert limit.in_use == 0


@asynccontextmanager
async def waiting_server(
    *, capacity: int, share: float, message_timeout: float
) -> AsyncIterator[tuple[grpc.aio.Channel, FairLimit]]:
    """A gRPC server that returns what it is sent."""

    async def admit(context: grpc.aio.ServicerContext) -> Principal:
        return Principal(mode="psk", principal_id="reader")

    async def echo(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return request

    unread = FairLimit("gRPC requests that wait for their message", capacity, share)
    edge = GrpcEdgeInterceptor(1.0, admit, unread, message_timeout)
    server = grpc.aio.server(interceptors=[edge])
    service, _, name = WAITING[1:].partition("/")
    handler = grpc.unary_unary_rpc_method_handler(echo, bytes, bytes)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel, unread
    finally:
        await server.stop(None)
