"""Three nodes of a mesh on one store, restarted one after the other behind a proxy without affinity: clients see one
server all the time. The same for the workers of one node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.fixtures.nats import NatsServer
from tests.fixtures.round_robin import round_robin
from tests.fixtures.system_programs import free_ports
from tests.marks import requirement
from tests.system.node import COMMAND, Node, environment, running_node, until
from tests.system.test_workers import worker_pids

KEY = "the-key-of-the-operator"
NAMES = ("one", "two", "three")
TIMEOUT = 50.0
VERSION = "2025-11-25"
ACCEPT = {"Accept": "application/json, text/event-stream"}


class HeldAgent:
    """An agent at an address: `work` ends when the test says so, `echo` at once."""

    def __init__(self) -> None:
        self.started: dict[str, asyncio.Event] = {}
        self.may_end: dict[str, asyncio.Event] = {}
        self.url = ""

    def event(self, events: dict[str, asyncio.Event], name: str) -> asyncio.Event:
        return events.setdefault(name, asyncio.Event())

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({})
        asked = await request.json()
        name = asked["arguments"].get("name", "")
        if asked["name"] == "work":
            self.event(self.started, name).set()
            await self.event(self.may_end, name).wait()
        return web.json_response({"ok": True, "result": {"name": name}})

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_route("*", "/", self.answer)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        try:
            yield
        finally:
            await runner.cleanup()


AGENTS = """
- agent_id: held
  runtime: http
  endpoint: {{uri: "{url}"}}
  capabilities:
    - {{name: work, idempotent: true, input_schema: {{type: object, properties: {{name: {{type: string}}}}}}}}
    - {{name: echo, input_schema: {{type: object, properties: {{name: {{type: string}}}}}}}}
"""


def write_node(folder: Path, agent: HeldAgent, settings: str) -> None:
    folder.mkdir()
    limits = "limits: {drain_seconds: 1, not_ready_seconds: 0}\njobs: {lease_seconds: 2}\n"
    (folder / "fabric.yaml").write_text(f"agents: [agents.yaml]\n{limits}{settings}")
    (folder / "agents.yaml").write_text(AGENTS.format(url=agent.url))
    (folder / "home").mkdir(mode=0o700)
    (folder / "home" / "key").write_text(KEY)
    (folder / "home" / "key").chmod(0o600)


@contextmanager
def three_nodes(folder: Path, agent: HeldAgent) -> Iterator[list[Callable[[], Node]]]:
    """What starts each of them, always on the same port."""
    nats = NatsServer().start()
    with ExitStack() as stack:
        stack.callback(nats.remove)
        starts: list[Callable[[], Node]] = []
        store = nats.address("rolling")
        for name, port in zip(NAMES, free_ports(3), strict=True):
            mesh = f"mesh: {{nats: 'nats://127.0.0.1:{nats.port}', key: a-secret-of-the-mesh}}\n"
            write_node(folder / name, agent, f"node_id: {name}\nstore: '{store}'\n{mesh}")

            def start(name: str = name, port: int = port) -> Node:
                return stack.enter_context(running_node(folder / name, listen=f"127.0.0.1:{port}"))

            starts.append(start)
        yield starts


class Client:
    """Requests through the proxy. Each is a new connection."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def post(self, path: str, body: Any, **headers: str) -> Any:
        async with self.session.post(self.url + path, json=body, headers=headers) as reply:
            text = await reply.text()
            assert reply.status < 300, (reply.status, text[:500])
            return last_message(text) if text else None

    async def open_session(self) -> dict[str, str]:
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        async with self.session.post(f"{self.url}/mcp", json=body, headers=ACCEPT) as reply:
            assert reply.status == 200, await reply.text()
            name = reply.headers["mcp-session-id"]
        headers = {**ACCEPT, "Mcp-Session-Id": name, "MCP-Protocol-Version": VERSION}
        await self.post("/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, **headers)
        return headers

    async def call_tool(self, headers: dict[str, str], name: str) -> None:
        body = tool_call("held_echo", name)
        message = await self.post("/mcp", body, **headers)
        assert message["result"]["structuredContent"] == {"name": name}, message

    async def begin_tool(self, headers: dict[str, str], agent: HeldAgent, name: str) -> str:
        """Begin a call with progress, and break the connection; the id of the last event."""
        body = tool_call("held_work", name)
        body["params"]["_meta"] = {"progressToken": name}
        async with self.session.post(f"{self.url}/mcp", json=body, headers=headers) as reply:
            assert reply.status == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            async for line in reply.content:
                if line.startswith(b"id:"):
                    break
            await wait_for(agent.event(agent.started, name))
        return line[3:].strip().decode()

    async def resume_tool(self, headers: dict[str, str], event_id: str) -> Any:
        """The reply to a call whose connection broke. The stream may end before, and is resumed again."""

        async def resume() -> Any:
            async with self.session.get(f"{self.url}/mcp", headers={**headers, "Last-Event-ID": event_id}) as reply:
                assert reply.status in (200, 503), (reply.status, await reply.text())
                async for line in reply.content:
                    if line.startswith(b"data:") and b'"result"' in line:
                        return json.loads(line[5:])
            return None

        return await repeat(resume)

    async def accept_job(self, name: str) -> str:
        arguments = {"agent_id": "held", "capability": "work", "task": "", "context": {"name": name}, "async": True}
        envelope = await self.post("/mcp/call", {"name": "fabric.call", "arguments": arguments})
        return str(envelope["result"]["job_id"])

    async def follow_rest(self, job_id: str) -> Any:
        """Server-sent events, resumed by their numbers."""
        last = ["0"]

        async def follow() -> Any:
            url = f"{self.url}/v1/tasks/{job_id}/events"
            async with self.session.get(url, headers={"Last-Event-ID": last[0]}) as reply:
                kind = ""
                async for line in reply.content:
                    if line.startswith(b"id:"):
                        last[0] = line[3:].strip().decode()
                    elif line.startswith(b"event:"):
                        kind = line[6:].strip().decode()
                    elif line.startswith(b"data:") and kind == "final":
                        return json.loads(line[5:])["status"]
            return None

        return await repeat(follow)

    async def wait_for_reply(self, message_id: str) -> Any:
        """A long poll."""

        async def poll() -> Any:
            async with self.session.get(f"{self.url}/v1/messages/{message_id}/reply?wait=20") as reply:
                page = await reply.json(content_type=None)
                return page if reply.status == 200 and page else None

        return await repeat(poll)

    async def subscribe_a2a(self, task_id: str) -> Any:
        async def subscribe() -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
            headers = {"A2A-Version": "1.0", "Accept": "text/event-stream"}
            async with self.session.post(f"{self.url}/agents/held", json=body, headers=headers) as reply:
                text = await reply.text()
            if "TASK_STATE_COMPLETED" in text:
                return "completed"
            get = {**body, "method": "GetTask"}  # an ended task cannot be subscribed to
            async with self.session.post(f"{self.url}/agents/held", json=get, headers={"A2A-Version": "1.0"}) as reply:
                return "completed" if "TASK_STATE_COMPLETED" in await reply.text() else None

        return await repeat(subscribe)


def tool_call(tool: str, name: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": {"name": tool, "arguments": {"name": name}}}


def last_message(text: str) -> Any:
    data = [line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip()]
    return json.loads(data[-1] if data else text)


async def wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(TIMEOUT):
        await event.wait()


async def repeat(ask: Callable[[], Awaitable[Any]]) -> Any:
    """As clients do whose connections break: ask again until there is an answer."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                answer = await ask()
            except (aiohttp.ClientError, ConnectionError, json.JSONDecodeError):
                answer = None
            if answer is not None:
                return answer
            await asyncio.sleep(0.1)


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {KEY}"},
        connector=aiohttp.TCPConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT),
    ) as session:
        yield Client(url, session)


def start_follower(url: str, job_id: str, folder: Path) -> asyncio.Future[asyncio.subprocess.Process]:
    (folder / "home").mkdir(exist_ok=True)
    return asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *COMMAND, "jobs", "follow", job_id, "--json",
            env=environment(folder / "home", FABRIC_URL=url, FABRIC_TOKEN=KEY),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
    )  # fmt: skip


@requirement("000-24")
async def test_a_rolling_restart_of_three_nodes_breaks_no_job_and_no_stream(tmp_path: Path) -> None:
    agent = HeldAgent()
    async with agent.serve():
        with three_nodes(tmp_path, agent) as starts:
            nodes = await asyncio.gather(*(asyncio.to_thread(start) for start in starts))
            await asyncio.to_thread(until, lambda: all(len(each.json("nodes")["nodes"]) == 3 for each in nodes), "all")
            async with round_robin([node.url for node in nodes]) as url, connect(url) as client:
                sessions = await open_one_at_each(client)
                jobs = [await client.accept_job(f"job-{number}") for number in range(4)]
                message = {"recipient": {"type": "agent", "id": "held"}, "metadata": {"capability": "work"},
                           "parts": [{"type": "json", "content": {"name": "message"}}]}  # fmt: skip
                sent = await client.post("/v1/messages", message)
                asked = {"message": {"messageId": "m1", "role": "ROLE_USER", "metadata": {"skill": "work"},
                                     "parts": [{"data": {"name": "a2a"}}]},
                         "configuration": {"returnImmediately": True}}  # fmt: skip
                begun = await client.post("/agents/held", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage",
                                                        "params": asked}, **{"A2A-Version": "1.0"})  # fmt: skip
                follower = await start_follower(url, jobs[0], tmp_path)
                readers = [
                    *(asyncio.ensure_future(client.follow_rest(job)) for job in jobs),
                    asyncio.ensure_future(client.wait_for_reply(sent["id"])),
                    asyncio.ensure_future(client.subscribe_a2a(begun["result"]["task"]["id"])),
                ]
                for number, start in enumerate(starts):
                    name = f"resumed-{number}"
                    event_id = await client.begin_tool(sessions[number], agent, name)
                    nodes[number].signal(signal.SIGTERM)
                    agent.event(agent.may_end, name).set()
                    in_sessions = [
                        asyncio.ensure_future(client.call_tool(headers, f"during-{number}")) for headers in sessions
                    ]
                    assert await asyncio.to_thread(nodes[number].wait) == 0, nodes[number].said
                    nodes[number] = await asyncio.to_thread(start)
                    await asyncio.gather(*in_sessions)
                    resumed = await client.resume_tool(sessions[number], event_id)
                    assert resumed["result"]["structuredContent"] == {"name": name}
                for headers in sessions:
                    await client.call_tool(headers, "after")
                for name in (*(f"job-{number}" for number in range(4)), "message", "a2a"):
                    agent.event(agent.may_end, name).set()
                *followed, reply, task = await asyncio.gather(*readers)
                assert followed == ["completed"] * 4
                assert reply, task
                assert task == "completed"
                output, errors = await asyncio.wait_for(follower.communicate(), TIMEOUT)
                assert follower.returncode == 0, (output, errors)


async def open_one_at_each(client: Client) -> list[dict[str, str]]:
    """Sessions that belong to the three nodes, in order of their names."""
    found: dict[str, dict[str, str]] = {}
    for _ in range(12):
        headers = await client.open_session()
        found.setdefault(headers["Mcp-Session-Id"].rpartition("~")[2], headers)
        if len(found) == len(NAMES):
            break
    return [found[name] for name in NAMES]


async def test_a_worker_that_is_restarted_keeps_its_sessions_and_streams(tmp_path: Path) -> None:
    agent = HeldAgent()
    async with agent.serve():
        write_node(tmp_path / "node", agent, "store: sqlite:fabric.db\n")
        with running_node(tmp_path / "node", "--workers", "2") as node:
            async with connect(node.url) as client:
                sessions: dict[str, dict[str, str]] = {}
                while len(sessions) < 2:
                    headers = await client.open_session()
                    sessions.setdefault(headers["Mcp-Session-Id"].rpartition("~")[2], headers)
                job = await client.accept_job("job")
                reader = asyncio.ensure_future(client.follow_rest(job))
                for number, (owner, pid) in enumerate(sorted(pids_by_name(node).items())):
                    event_id = await client.begin_tool(sessions[owner], agent, f"resumed-{number}")
                    os.kill(pid, signal.SIGTERM)
                    agent.event(agent.may_end, f"resumed-{number}").set()
                    await asyncio.to_thread(
                        until, lambda pid=pid: pid not in (now := worker_pids(node)) and len(now) == 2, "a new worker"
                    )
                    for headers in sessions.values():
                        await client.call_tool(headers, f"during-{number}")
                    resumed = await client.resume_tool(sessions[owner], event_id)
                    assert resumed["result"]["structuredContent"] == {"name": f"resumed-{number}"}
                agent.event(agent.may_end, "job").set()
                assert await reader == "completed"
            node.signal(signal.SIGTERM)
            assert node.wait() == 0


def pids_by_name(node: Node) -> dict[str, int]:
    found: dict[str, int] = {}
    for pid in worker_pids(node):
        _, description = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0--worker\0")
        found[f"w{json.loads(description)['number']}"] = pid
    return found
