"""A conversation id belongs to the caller who chose it: at no agent does another caller continue it by naming it.

Each test asks through the node's own door, twice as alice and once as bob, with the same
conversation id, and looks at the ids that reached the agent. The runtimes that keep their
agents' own sessions (a2a, acp, agentzero, claude, agent_client) have the like in their own files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.runtimes.proto.messages import (
    CallRequest,
    DescribeRequest,
    Description,
    HealthReply,
    HealthRequest,
    Outcome,
    StreamItem,
)
from tests.fixtures.agents.grpc_serving import done, serving
from tests.fixtures.agents.rest import AGENT, RestPlatform
from tests.fixtures.agents.rpc import RPCAgent, body_of, reply
from tests.fixtures.node import Node, running
from tests.matrix.agents.listening import listening
from tests.runtimes.fabric_nodes import entry, listed

TALK = "talk-1"
KEYS = [{"id": name, "key": f"the-key-of-{name}"} for name in ("alice", "bob")]
CONFIG: dict[str, Any] = {"auth": {"keys": KEYS}, "health": {"interval": 0}}
ECHO = [{"name": "echo", "idempotent": False}]

Seen = Callable[[], list[str]]


async def ask(node: Node, who: str, agent_id: str = "worker", **given: Any) -> dict[str, Any]:
    arguments = {"agent_id": agent_id, "capability": "echo", "task": "hello", **given}
    envelope: dict[str, Any] = await node.operation("fabric.call", arguments, token=f"the-key-of-{who}")
    assert envelope["ok"], envelope
    return envelope


async def check_apart(node: Node, seen: Seen, agent_id: str = "worker") -> None:
    for who in ("alice", "alice", "bob"):
        await ask(node, who, agent_id, conversation_id=TALK)
    ids = seen()
    assert len(ids) == 3
    assert ids[0] == ids[1] != ids[2]
    assert TALK not in ids
    await ask(node, "bob", agent_id, conversation_id=ids[0][:256])  # nor by naming what the agent was sent
    assert seen()[-1] not in ids


def worker(runtime: str, **endpoint: Any) -> dict[str, Any]:
    return {"agent_id": "worker", "runtime": runtime, "endpoint": endpoint, "capabilities": ECHO}


class Recorder:
    """An HTTP agent that keeps the bodies it was sent, and their paths."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            body = await body_of(receive)
            if scope["method"] == "POST":
                self.bodies.append(json.loads(body))
                self.paths.append(scope["path"])
            await reply(send, {"ok": True, "result": {"answer": "yes"}})


async def test_over_the_http_contract() -> None:
    agent = Recorder()
    async with listening(agent) as url, running(manifests=[worker("http", uri=url)], config=CONFIG) as node:
        await check_apart(node, lambda: [body["conversation_id"] for body in agent.bodies])


TEMPLATE = {"session": "$conversation_id", "text": "$task"}


async def test_over_an_http_template() -> None:
    agent = Recorder()
    manifest = worker("http")
    async with listening(agent) as url:
        manifest["endpoint"] = {"uri": f"{url}/talks/${{conversation_id}}", "request": TEMPLATE}
        async with running(manifests=[manifest], config=CONFIG) as node:
            await check_apart(node, lambda: [body["session"] for body in agent.bodies])
            assert agent.paths[0] != agent.paths[2]


async def test_over_an_http_template_a_chosen_trace_id_is_no_way_in_either() -> None:
    """Without a conversation the template gets a name made from the trace, which callers may choose, too."""
    agent = Recorder()
    trace = {"trace_id": "0af76519-16cd-43dd-8448-eb211c80319c"}
    async with listening(agent) as url:
        manifest = worker("http", uri=url, request=TEMPLATE)
        async with running(manifests=[manifest], config=CONFIG) as node:
            for who in ("alice", "bob"):
                await ask(node, who, trace=trace)
    assert agent.bodies[0]["session"] != agent.bodies[1]["session"]


async def test_over_rest_tasks() -> None:
    platform = RestPlatform()
    async with listening(platform) as url:
        manifest = worker("rest", uri=f"{url}/v1", agent=AGENT)
        async with running(manifests=[manifest], config=CONFIG) as node:

            def seen() -> list[str]:
                return [body["conversationId"] for method, path, body in platform.requests if path == "/tasks"]

            await check_apart(node, seen)


async def test_over_rest_messages() -> None:
    platform = RestPlatform("messages")
    async with listening(platform) as url:
        manifest = worker("rest", uri=f"{url}/v1", agent=AGENT, mode="messages")
        async with running(manifests=[manifest], config=CONFIG) as node:

            def seen() -> list[str]:
                sent = [body for method, path, body in platform.requests if path.endswith(f"/{AGENT}/messages")]
                return [body["metadata"]["conversation_id"] for body in sent]

            await check_apart(node, seen)


async def test_over_rpc() -> None:
    agent = RPCAgent()
    async with listening(agent) as url, running(manifests=[worker("rpc", uri=url)], config=CONFIG) as node:
        await check_apart(node, lambda: [asked["params"]["conversationId"] for asked in agent.requests])


class GrpcWorker:
    def __init__(self) -> None:
        self.requests: list[CallRequest] = []

    async def call(self, request: CallRequest, context: grpc.aio.ServicerContext) -> Outcome:
        self.requests.append(request)
        return done({})

    async def stream(self, request: CallRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[StreamItem]:
        raise NotImplementedError
        yield

    async def describe(self, request: DescribeRequest, context: grpc.aio.ServicerContext) -> Description:
        return Description()

    async def health(self, request: HealthRequest, context: grpc.aio.ServicerContext) -> HealthReply:
        return HealthReply(status="online")


async def test_over_grpc() -> None:
    agent = GrpcWorker()
    async with serving(agent) as port:
        manifest = worker("grpc", uri=f"grpc://127.0.0.1:{port}")
        async with running(manifests=[manifest], config=CONFIG) as node:
            await check_apart(node, lambda: [request.conversation_id for request in agent.requests])


PROGRAM = """
from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call

agent = Agent("worker")

@agent.capability
def echo(task: str, call: Call) -> dict:
    return {"talk": call.conversation_id}

agent.run(stdio=True)
"""


async def test_over_json_lines(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(PROGRAM)
    manifest = worker("process", command=[sys.executable, str(tmp_path / "worker.py")])
    async with running(manifests=[manifest], config=CONFIG) as node:
        await check_by_answers(node)


async def test_in_the_node_s_own_process() -> None:
    async with running(teller(), config=CONFIG) as node:
        await check_by_answers(node)


async def test_at_another_node_where_all_of_this_node_s_callers_have_one_key() -> None:
    async with running(teller()) as there, running(manifests=[entry(there.url)], config=CONFIG) as here:
        await listed(here, "lab/worker")
        await check_by_answers(here, "lab/worker")


def teller() -> Agent:
    agent = Agent("worker")

    @agent.capability
    async def echo(task: str, call: Call) -> dict[str, Any]:
        return {"talk": call.conversation_id}

    return agent


async def check_by_answers(node: Node, agent_id: str = "worker") -> None:
    talks = [
        (await ask(node, who, agent_id, conversation_id=TALK))["result"]["talk"] for who in ("alice", "alice", "bob")
    ]
    assert talks[0] == talks[1] != talks[2]
    assert talks[0].endswith(f".{TALK}")  # the agent's operator can tell which of the caller's conversations it is
    assert (await ask(node, "bob", agent_id, conversation_id=talks[0]))["result"]["talk"] not in talks


@asynccontextmanager
async def node_of(base: Path) -> AsyncIterator[Node]:
    async with running(teller(), config={**CONFIG, "store": "sqlite:fabric.db"}, base=base) as node:
        yield node


async def test_the_same_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    talks = []
    for _ in range(2):
        async with node_of(tmp_path) as node:
            talks.append((await ask(node, "alice", conversation_id=TALK))["result"]["talk"])
    assert talks[0] == talks[1]


@pytest.mark.parametrize("length", [1, 223, 224, 256])
async def test_an_id_that_grows_too_long_is_shortened_and_still_the_caller_s_own(length: int) -> None:
    async with running(teller(), config=CONFIG) as node:
        name = "x" * length
        talks = [(await ask(node, who, conversation_id=name))["result"]["talk"] for who in ("alice", "alice", "bob")]
    assert talks[0] == talks[1] != talks[2]
    assert all(len(talk) <= 256 for talk in talks)
