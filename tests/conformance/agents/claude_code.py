"""Claude Code as an agent of runtime `claude`: a folder with instructions, and a stub in place of the model."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.conformance.agents.agent import AgentUnderTest, Home
from tests.conformance.clients.claude_code import CLAUDE_CODE as CLIENT
from tests.conformance.clients.claude_code import SILENT_AND_PATIENT
from tests.conformance.clients.place import expect
from tests.conformance.model_apis.messages import MessagesAPI
from tests.conformance.model_apis.move import Asked, Move
from tests.conformance.model_stub import ModelStub, error, serving
from tests.fixtures.mcp_servers.serving import serving as serving_mcp
from tests.fixtures.node import Node, running

AGENT = "basil"
INSTRUCTIONS = "# Basil\n\nYou are Basil, a cook with a passion for parsley.\n"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAIT_TIMEOUT = 60.0
_ROOT = Path(__file__).parents[3]
_OBJECTS = "StructuredOutput"
_TOOL = "mcp__matrix__refuse"


class Model(ModelStub):
    """Says how many turns it has seen; calls a tool if it is told to; or does not answer at all."""

    def __init__(self, tool: str = "", arguments: dict[str, Any] | None = None, status: int = 200) -> None:
        super().__init__(MessagesAPI(), *([(tool, arguments or {})] if tool else []))
        self.bodies: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        self._status = status

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == MessagesAPI.path:
            self.bodies.append(json.loads(await request.read()))
            self.asked.set()
            if self._status == 0:
                await asyncio.sleep(WAIT_TIMEOUT)
            if self._status != 200:
                return error(self._status, "some_error", "no")
        return await super().answer(request)

    def _next(self, asked: Asked) -> Move:
        if self._calls and not asked.results:
            return super()._next(asked)
        if asked.results:
            return Move(text=f"The tool said: {asked.results[-1]}")
        tasks = [text for text in self.said if text.startswith("Task ")]
        return Move(text=f"I heard: {' '.join(tasks)}")

    @property
    def said(self) -> list[str]:
        """The words of the user in the last request, block by block."""
        messages = [message for message in self.bodies[-1]["messages"] if message["role"] == "user"]
        contents = [message["content"] for message in messages]
        blocks = [block for content in contents for block in ([content] if isinstance(content, str) else content)]
        texts = [block if isinstance(block, str) else block.get("text", "") for block in blocks]
        return [text.strip() for text in texts]

    @property
    def instructions(self) -> str:
        return json.dumps(self.bodies[-1]["system"])


class Kitchen(Home):
    """With the agent's folder, and what a node is told of it."""

    def __init__(self, program: Sequence[str], home: Path) -> None:
        super().__init__(program, home)
        self.folder = home / AGENT
        self.folder.mkdir()
        (self.folder / "CLAUDE.md").write_text(INSTRUCTIONS, "utf-8")

    def node(self, model: Model, **more: Any) -> AbstractAsyncContextManager[Node]:
        capabilities = more.pop("capabilities", [])
        account = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none"}
        env = {**self.env, **SILENT_AND_PATIENT, **account}
        endpoint = {"path": str(self.folder), "command": self.program, "env": env, **more}
        manifest = {"agent_id": AGENT, "runtime": "claude-subprocess", "endpoint": endpoint}
        return running(manifests=[{**manifest, "capabilities": capabilities or [{"name": "ask", "streaming": True}]}])


async def _answer(node: Node, task: str, **more: Any) -> Any:
    envelope = await node.ask(AGENT, "ask", task, **more)
    expect(envelope["ok"], envelope)
    return envelope["result"]


async def is_what_its_folder_says(kitchen: Kitchen) -> None:
    for choice in ("append", "replace"):
        async with serving(Model()) as model, kitchen.node(model, system_prompt=choice) as node:
            result = await _answer(node, "Task one.")
            expect(result["answer"] == "I heard: Task one.", result)
            expect(result["usage"]["output_tokens"] == 1 and result["cost_usd"] > 0, result)
            expect("passion for parsley" in model.instructions, model.instructions[-300:])
            expect(not any("parsley" in text for text in model.said), model.said)
            expect(("Claude Code" in model.instructions) == (choice == "append"), choice)


async def streams(kitchen: Kitchen) -> None:
    async with serving(Model()) as model, kitchen.node(model) as node:
        events = await node.events(AGENT, "ask", "Task one.")
        tokens = [event["data"]["text"] for event in events if event["event"] == "token"]
        expect(tokens == ["I heard: Task one."], events)


async def remembers_a_conversation(kitchen: Kitchen) -> None:
    """Also with another node, which does not know that it has begun."""
    async with serving(Model()) as model:
        async with kitchen.node(model) as node:
            await _answer(node, "Task one.", conversation_id="supper")
            second = await _answer(node, "Task two.", conversation_id="supper")
            expect(second["answer"] == "I heard: Task one. Task two.", second)
            other = await _answer(node, "Task three.", conversation_id="breakfast")
            expect(other["answer"] == "I heard: Task three.", other)
        async with kitchen.node(model) as node:
            third = await _answer(node, "Task three.", conversation_id="supper")
            expect(third["answer"] == "I heard: Task one. Task two. Task three.", third)
            expect(third["session_id"] == second["session_id"], third)


async def sees_images_and_no_commands(kitchen: Kitchen) -> None:
    async with serving(Model()) as model, kitchen.node(model) as node:
        image = {"type": "file", "content": PIXEL, "mime_type": "image/png"}
        await _answer(node, "/context", attachments=[image])
        expect("/context" in model.said, model.said)
        expect(PIXEL in json.dumps(model.bodies[-1]["messages"]), "the image is missing")


async def answers_with_an_object(kitchen: Kitchen) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    declared = [{"name": "ask", "output_schema": schema}]
    async with serving(Model(_OBJECTS, {"n": 3})) as model, kitchen.node(model, capabilities=declared) as node:
        expect(await _answer(node, "Task one.") == {"n": 3}, model.offered)


async def uses_the_servers_of_its_folder(kitchen: Kitchen) -> None:
    server = {"command": sys.executable, "args": [str(_ROOT / "tests/fixtures/mcp_servers/matrix.py")]}
    config = {"mcpServers": {"matrix": {**server, "env": {"PYTHONPATH": str(_ROOT)}}}}
    (kitchen.folder / ".mcp.json").write_text(json.dumps(config), "utf-8")
    async with serving(Model(_TOOL, {"reason": "no parsley"})) as model:
        async with kitchen.node(model, allowed_tools=[_TOOL]) as node:
            events = await node.events(AGENT, "ask", "Task one.")
            calls = [event["data"] for event in events if event["event"] == "tool_call"]
            expect([call["tool"] for call in calls] == [_TOOL, _TOOL], events)
            expect(calls[0]["arguments"] == {"reason": "no parsley"} and calls[1]["status"] == "failed", calls)
        async with kitchen.node(model) as node:
            envelope = await node.ask(AGENT, "ask", "Task two.")
            expect("permission was denied" in " ".join(envelope["notes"]), envelope)


def write_card(kitchen: Kitchen, model: Model) -> None:
    """A federated card with an invocation block, whose files have names of their own."""
    account = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none"}
    card = {
        "name": AGENT,
        "version": "1.0.0",
        "description": "Cooks.",
        "personality": "Speaks only of salt.",
        "skills": [{"id": "ask", "description": "Answers."}, {"id": "refuse-it", "description": "Refuses."}],
        "invocation": {
            "type": "claude-subprocess",
            "systemPrompt": "./prompts/cook.md",
            "mcpConfig": "./servers.json",
            "knowledgePath": "./facts",
            "options": {
                "command": kitchen.program,
                "env": {**kitchen.env, **SILENT_AND_PATIENT, **account},
                "allowed_tools": [_TOOL],
            },
        },
        "dependencies": {
            "mcps": [{"name": "matrix", "required": True, "capabilities": ["refuse-it"]}],
            "agents": ["rosa"],
            "knowledge": ["facts/taste.md"],
        },
        "coordination": {"rules": [{"condition": "the guest is in a hurry", "action": "answer in one sentence"}]},
    }
    server = {"command": sys.executable, "args": [str(_ROOT / "tests/fixtures/mcp_servers/matrix.py")]}
    servers = {"mcpServers": {"matrix": {**server, "env": {"PYTHONPATH": "${MATRIX_ROOT}"}}}}
    for name, text in {
        "agent.json": json.dumps(card),
        "servers.json": json.dumps(servers),
        "prompts/cook.md": "You cook with parsley.",
        "facts/taste.md": "The guests hate coriander.",
    }.items():
        path = kitchen.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")


async def is_what_its_card_says(kitchen: Kitchen) -> None:
    """The prompt of the card, its personality, rules and knowledge; and only the servers that a skill needs."""
    for skill, is_offered in (("ask", False), ("refuse-it", True)):
        async with serving(Model(_TOOL, {"reason": "no parsley"})) as model:
            write_card(kitchen, model)
            config = {"agents": [AGENT], "store": "memory:"}
            environ = {"PATH": kitchen.env["PATH"], "MATRIX_ROOT": str(_ROOT)}
            async with running(config=config, base=kitchen.home, from_files=True, environ=environ) as node:
                envelope = await node.ask(AGENT, skill, "Task one.")
            expect(envelope["ok"], envelope)
            for words in (
                "You cook with parsley",
                "Speaks only of salt",
                "The guests hate coriander",
                "answer in one sentence",
                "these agents only: rosa",
            ):
                expect(words in model.instructions, words)
            expect("passion for parsley" not in model.instructions + " ".join(model.said), "the CLAUDE.md is not meant")
            expect((_TOOL in model.offered) is is_offered, sorted(model.offered))
            expect(("no parsley" in envelope["result"]["answer"]) is is_offered, envelope)


async def says_which_server_wants_credentials(kitchen: Kitchen) -> None:
    """The program may be signed in at a server, so the node lets it try; the program says that it is not."""
    async with serving_mcp(era="handshake") as server, serving(Model()) as model:
        server.gate.broken = 401
        write_card(kitchen, model)
        servers = {"mcpServers": {"matrix": {"type": "http", "url": server.url}}}
        (kitchen.folder / "servers.json").write_text(json.dumps(servers), "utf-8")
        config = {"agents": [AGENT], "store": "memory:"}
        environ = {"PATH": kitchen.env["PATH"]}
        async with running(config=config, base=kitchen.home, from_files=True, environ=environ) as node:
            task = {"id": "t-1", "type": "refuse-it", "payload": {"task": "Task one."}}
            envelope = await node.ask(AGENT, "task", "", context=task)
            error = envelope["result"]["error"]
            expect("the MCP server 'matrix'" in error["message"], envelope)
            expect(error["code"] in ("MCP_AUTH_FAILED", "MCP_NOT_CONNECTED") and error["recoverable"], envelope)
            expect(not model.bodies, "the model was asked")
            expect((await node.ask(AGENT, "ask", "Task one."))["ok"], "a skill that does not need it")


async def says_when_it_has_no_access(kitchen: Kitchen) -> None:
    async with serving(Model(status=401)) as model, kitchen.node(model) as node:
        envelope = await node.ask(AGENT, "ask", "Task one.")
        expect(envelope["error_code"] == "AGENT_OFFLINE" and "credentials" in envelope["error"], envelope)


async def ends_with_the_call(kitchen: Kitchen) -> None:
    async with serving(Model(status=0)) as model, kitchen.node(model) as node:
        asking = asyncio.ensure_future(node.ask(AGENT, "ask", "Task one."))
        await asyncio.wait_for(model.asked.wait(), WAIT_TIMEOUT)
        expect(not kitchen.is_empty, "it is not there")
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not kitchen.is_empty:  # noqa: ASYNC110  # processes send no events
                await asyncio.sleep(0.05)


CLAUDE_CODE = AgentUnderTest(
    package=CLIENT.package,
    entry=CLIENT.entry,
    is_script=CLIENT.is_script,
    home=Kitchen,
    checks={
        "is what its folder says, once": is_what_its_folder_says,
        "streams its words": streams,
        "remembers a conversation, on another node too": remembers_a_conversation,
        "sees images, and takes no task for a command": sees_images_and_no_commands,
        "answers with an object where one is declared": answers_with_an_object,
        "uses the MCP servers of its folder, as far as it may": uses_the_servers_of_its_folder,
        "is what a federated card says, with the servers that a skill needs": is_what_its_card_says,
        "says which MCP server wants credentials, before the model is asked": says_which_server_wants_credentials,
        "says when its model refuses its credentials": says_when_it_has_no_access,
        "ends with the call": ends_with_the_call,
    },
)
