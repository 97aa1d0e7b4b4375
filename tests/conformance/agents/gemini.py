"""Gemini CLI as an agent of runtime `agent-client`: another way to speak that protocol, with a stub model."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import web

from tests.conformance.agents.agent import AgentUnderTest, Home
from tests.conformance.clients.gemini import GEMINI as CLIENT
from tests.conformance.clients.place import expect
from tests.conformance.model_stub import serving
from tests.fixtures.node import Node, running

AGENT = "coder"
WAIT_TIMEOUT = 60.0
_WHICH_MODEL = json.dumps({"complexity_reasoning": "none", "complexity_score": 1})  # asked for before the first task
_SHELL = {"functionCall": {"name": "run_shell_command", "args": {"command": "touch parsley"}}}


class Gemini:
    """Says which tasks it has heard; for a task with `touch` it first wants to run a command."""

    def __init__(self) -> None:
        self.url = ""
        self.is_silent = False
        self.asked = asyncio.Event()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        if "streamGenerateContent" not in request.path:
            return web.json_response(_reply({"text": _WHICH_MODEL}))
        self.asked.set()
        if self.is_silent:
            await asyncio.sleep(WAIT_TIMEOUT)
        events = f"data: {json.dumps(_reply(_next(body['contents'])))}\n\n"
        return web.Response(text=events, content_type="text/event-stream")


def _next(contents: list[dict[str, Any]]) -> dict[str, Any]:
    parts = [part for content in contents for part in content["parts"] if content["role"] == "user"]
    tasks = [part["text"].strip() for part in parts if part.get("text", "").startswith("Task ")]
    has_run = "functionResponse" in contents[-1]["parts"][0]
    return _SHELL if tasks[-1:] == ["Task touch."] and not has_run else {"text": f"I heard: {' '.join(tasks)}"}


def _reply(part: dict[str, Any]) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {"candidates": [candidate], "usageMetadata": usage}


def node_with(home: Home, model: Gemini | None, **more: Any) -> AbstractAsyncContextManager[Node]:
    account = {} if model is None else {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": model.url}
    trusting = {"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_TELEMETRY_ENABLED": "false"}
    endpoint = {
        "command": [*home.program, "--acp"],
        "path": str(home.home),
        "env": {**home.env, **trusting, **account},
        "start_timeout": WAIT_TIMEOUT,
        **more,
    }
    return running(manifests=[{"agent_id": AGENT, "runtime": "agent-client", "endpoint": endpoint}])


async def _answer(node: Node, task: str, **more: Any) -> Any:
    envelope = await node.ask(AGENT, "ask", task, timeout_ms=round(WAIT_TIMEOUT * 1000), **more)
    expect(envelope["ok"], envelope)
    return envelope


async def _described(node: Node) -> None:
    """It takes a while until it has said who it is."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not node.fabric.registry.catalog.agents[0].capabilities:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.1)


async def says_who_it_is_and_what_it_needs(home: Home) -> None:
    async with node_with(home, None) as node:
        await _described(node)
        manifest = node.fabric.registry.catalog.agents[0]
        expect((manifest.display_name, manifest.version) == ("Gemini CLI", CLIENT.package.rpartition("@")[2]), manifest)
        envelope = await node.ask(AGENT, "ask", "Task one.")
        expect(envelope["error_code"] == "AGENT_OFFLINE" and "gemini-api-key" in envelope["error"], envelope)


async def answers_streams_and_remembers(home: Home) -> None:
    async with serving(Gemini()) as model, node_with(home, model) as node:
        await _described(node)
        events = await node.events(AGENT, "ask", "Task one.", conversation_id="supper", timeout_ms=25_000)
        tokens = [event["data"]["text"] for event in events if event["event"] == "token"]
        expect("".join(tokens) == "I heard: Task one.", events)
        second = await _answer(node, "Task two.", conversation_id="supper")
        expect(second["result"]["answer"] == "I heard: Task one. Task two.", second)
        alone = await _answer(node, "Task three.")
        expect(alone["result"]["answer"] == "I heard: Task three.", alone)


async def does_only_what_it_may(home: Home) -> None:
    file = home.home / "parsley"
    async with serving(Gemini()) as model:
        async with node_with(home, model) as node:
            await _described(node)
            envelope = await _answer(node, "Task touch.")
            expect("permission was denied" in " ".join(envelope.get("notes") or ()), envelope)
            expect(not file.exists(), "it has run what it may not")
        async with node_with(home, model, permissions="allow") as node:
            await _described(node)
            await _answer(node, "Task touch.")
            expect(file.exists(), "it has not run what it may")


async def asks_the_caller(home: Home) -> None:
    async with serving(Gemini()) as model, node_with(home, model, permissions="ask") as node:
        await _described(node)
        first = (await _answer(node, "Task touch."))["result"]["input_required"]
        expect("touch parsley" in first["message"], first)
        answers = {key: {"action": "accept"} for key in first["questions"]}
        second = await _answer(node, "", continuation=first["continuation"], answers=answers)
        expect(second["result"]["answer"] == "I heard: Task touch.", second)
        expect((home.home / "parsley").exists(), "it has not run what it was allowed to")


async def stops_with_the_call_and_ends_with_the_node(home: Home) -> None:
    async with serving(Gemini()) as model:
        async with node_with(home, model) as node:
            await _described(node)
            model.is_silent = True
            asking = asyncio.ensure_future(node.ask(AGENT, "ask", "Task one.", conversation_id="supper"))
            await asyncio.wait_for(model.asked.wait(), WAIT_TIMEOUT)
            asking.cancel()
            await asyncio.wait([asking])
            model.is_silent = False
            second = await _answer(node, "Task two.", conversation_id="supper")
            expect(second["result"]["answer"].endswith("Task two."), second)
            expect(not home.is_empty, "it is not there")
        expect(home.is_empty, "it is still there")


GEMINI = AgentUnderTest(
    package=CLIENT.package,
    entry=CLIENT.entry,
    checks={
        "says who it is, and what it needs": says_who_it_is_and_what_it_needs,
        "answers, streams its words and remembers a conversation": answers_streams_and_remembers,
        "does only what the manifest allows": does_only_what_it_may,
        "asks whoever calls, and goes on with the answer": asks_the_caller,
        "stops with the call, and ends with the node": stops_with_the_call_and_ends_with_the_node,
    },
)
