"""The contract suite of a door. Needs the extra `testing`: pip install 'a2a-fabric[testing]'.

class TestMyDoor(DoorContract):
    kind = "mine"
    plugin = plugin

    async def ask(self, node: InProcessClient, request: DoorRequest) -> str:
        reply = await node.request("POST", "/mine", request.key, {"text": request.task})
        if reply.status != 200:
            raise DoorRefusal(reply.status, reply.text)
        return reply.text
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

import msgspec
import pytest
import pytest_asyncio

from a2a_fabric import plugins
from a2a_fabric.agent import Agent
from a2a_fabric.app import Fabric
from a2a_fabric.config import AuthKey, AuthSettings, Config, LimitSettings
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import DoorPlugin
from a2a_fabric.testing.values import TIMEOUT

KEY, SCOPELESS_KEY, _OPERATOR_KEY = "a-key-of-the-suite", "a-key-without-scopes", "the-key-of-the-operator"
BODY_BYTES = 64 * 1024
_AGENT = "echo"
_SECRET = "the-inner-detail"  # noqa: S105  # stands for what an exception may hold


class DoorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a client of the door makes. `key` is its credential, as a Bearer token; None for none."""

    agent_id: str
    capability: str
    task: str
    key: str | None = KEY


class DoorReply(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class DoorRefusal(Exception):
    """The door answered with an error: its HTTP status, or the code of its protocol, and what it said."""

    def __init__(self, status: int | str, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status
        self.text = text


class InProcessClient:
    """Requests to a node in this process, without a socket."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def request(
        self,
        method: str,
        path: str,
        key: str | None = KEY,
        body: object = None,
        headers: Mapping[str, str] = {},  # read-only
    ) -> DoorReply:
        """The whole reply. A `body` that is not bytes is sent as JSON."""
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        sent = {"host": "node.test", "content-length": str(len(content)), "content-type": "application/json", **headers}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        path_only, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path_only,
            "raw_path": path_only.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8000),
        }
        exchange = _Exchange(content)
        async with asyncio.timeout(TIMEOUT):
            await self._app(scope, exchange.receive, exchange.send)
        return DoorReply(status=exchange.status, headers=exchange.headers, body=bytes(exchange.body))


class _Exchange:
    """The two ends of one request in ASGI."""

    def __init__(self, content: bytes) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self._messages: list[dict[str, Any]] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await asyncio.Event().wait()  # the client stays until it has the reply
        raise AssertionError

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")


class _EchoAgent:
    """The agent behind the doors of this suite; counts the calls that reach it."""

    def __init__(self) -> None:
        self.calls = 0
        self.agent = Agent(_AGENT)
        self.agent.capability(self.echo)
        self.agent.capability(self.fail)

    async def echo(self, task: str) -> dict[str, str]:
        """Answer with the task."""
        self.calls += 1
        return {"answer": f"echo {task}"}

    async def fail(self, task: str) -> None:
        """Fail with an exception that no caller should read."""
        self.calls += 1
        raise KeyError(_SECRET)


@pytest.mark.asyncio
class DoorContract(ABC):
    """What every door through which agents are called promises. Subclass it, set `kind` and write `ask`."""

    kind: ClassVar[str]
    plugin: ClassVar[DoorPlugin[Any, Any, Any] | None] = None  # for a door that is not installed as an entry point
    settings: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    async def ask(self, node: InProcessClient, request: DoorRequest) -> str:
        """The text of the reply to a call. Raises DoorRefusal if the reply is an error."""

    @pytest.fixture
    def echo_agent(self) -> _EchoAgent:
        return _EchoAgent()

    @pytest_asyncio.fixture
    async def node(self, echo_agent: _EchoAgent) -> AsyncIterator[InProcessClient]:
        async with self._make_fabric(echo_agent, self.settings) as fabric:
            yield InProcessClient(fabric.app)

    def _make_fabric(self, echo_agent: _EchoAgent, settings: Mapping[str, Any]) -> Fabric:
        if self.plugin is not None:
            plugins.add_plugin("doors", self.kind, self.plugin)
        keys = (AuthKey(id="caller", key=KEY, scopes=("agent:*",)), AuthKey(id="other", key=SCOPELESS_KEY, scopes=()))
        config = Config(
            doors=({"kind": self.kind, **settings},),
            auth=AuthSettings(keys=keys),
            limits=LimitSettings(body_bytes=BODY_BYTES),
            store="memory:",
        )
        return Fabric(config, sources=(), agents=(echo_agent.agent,), psk=_OPERATOR_KEY)

    async def test_a_call_reaches_the_agent_and_its_answer_comes_back(self, node: InProcessClient) -> None:
        assert "echo hello" in await self.ask(node, DoorRequest(agent_id=_AGENT, capability="echo", task="hello"))

    async def test_calls_at_the_same_time_get_each_their_own_answer(self, node: InProcessClient) -> None:
        requests = [DoorRequest(agent_id=_AGENT, capability="echo", task=f"number-{i}-end") for i in range(10)]
        replies = await asyncio.gather(*(self.ask(node, request) for request in requests))
        assert all(f"echo {request.task}" in reply for request, reply in zip(requests, replies, strict=True))

    @pytest.mark.parametrize("key", [None, "a-key-that-was-never-given", SCOPELESS_KEY])
    async def test_a_caller_without_the_right_reaches_no_agent(
        self, node: InProcessClient, echo_agent: _EchoAgent, key: str | None
    ) -> None:
        with pytest.raises(DoorRefusal):
            await self.ask(node, DoorRequest(agent_id=_AGENT, capability="echo", task="hello", key=key))
        assert echo_agent.calls == 0

    @pytest.mark.parametrize(("agent_id", "capability"), [("no-such-agent", "echo"), (_AGENT, "no-such-capability")])
    async def test_what_is_not_there_is_an_error_that_says_so(
        self, node: InProcessClient, agent_id: str, capability: str
    ) -> None:
        with pytest.raises(DoorRefusal) as raised:
            await self.ask(node, DoorRequest(agent_id=agent_id, capability=capability, task="hello"))
        assert raised.value.text.strip()
        assert "Traceback" not in raised.value.text

    async def test_an_agent_that_breaks_is_an_error_without_its_inner_words(self, node: InProcessClient) -> None:
        with pytest.raises(DoorRefusal) as raised:
            await self.ask(node, DoorRequest(agent_id=_AGENT, capability="fail", task="hello"))
        assert _SECRET not in raised.value.text
        assert "Traceback" not in raised.value.text

    async def test_a_body_beyond_the_limit_is_refused(self, node: InProcessClient, echo_agent: _EchoAgent) -> None:
        with pytest.raises(DoorRefusal):
            await self.ask(node, DoorRequest(agent_id=_AGENT, capability="echo", task="x" * (BODY_BYTES + 1)))
        assert echo_agent.calls == 0

    async def test_an_unknown_setting_stops_the_start(self, echo_agent: _EchoAgent) -> None:
        with pytest.raises(ConfigError):
            async with self._make_fabric(echo_agent, {**self.settings, "no_such_setting": 1}):
                pass
