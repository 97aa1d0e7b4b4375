"""What the tests of the REST door share: a node with a few agents, and short ways to say what the document says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from a2a_fabric.agent import Agent
from a2a_fabric.core.result import Part
from tests.fixtures.node import PSK, Node, eventually, running

BOB, EVE = "the-key-of-bob", "the-key-of-eve"
KEYS = [{"id": "bob", "key": BOB}, {"id": "eve", "key": EVE, "trust": "org"}]
ISO_Z = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UNLIMITED = {"kind": "rest", "requests_per_minute": None}


def percy() -> Agent:
    agent = Agent("percy", display_name="Percy", description="Says it louder", version="1.2.0")

    @agent.capability
    async def shout(text: str) -> dict[str, str]:
        return {"answer": text.upper()}

    return agent


def mirror() -> Agent:
    """Gives back what it was sent: words, what belongs to them, and all that was attached."""
    agent = Agent("mirror")

    @agent.capability
    async def show(task: str, context: dict[str, Any], pieces: list[Part] | None = None) -> list[Part]:
        said = [Part(kind="text", text=task)] if task else []
        given = [Part(kind="json", data=context)] if context else []
        return [*said, *given, *(pieces or ())]

    return agent


@dataclass
class Sleeper:
    """An agent that sleeps until it is woken or cancelled."""

    asleep: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def agent(self) -> Agent:
        agent = Agent("sleeper")

        @agent.capability
        async def sleep() -> dict[str, bool]:
            self.asleep.set()
            try:
                await self.wake.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return {"slept": True}

        return agent


@asynccontextmanager
async def rest(*agents: Agent, door: dict[str, Any] | None = None, **config: Any) -> AsyncIterator[Node]:
    doors = config.pop("doors", [{"kind": "fabric"}, {**UNLIMITED, **(door or {})}])
    manifests, base = config.pop("manifests", ()), config.pop("base", None)
    settings = {"doors": doors, "auth": {"keys": KEYS}, **config}
    async with running(*agents, config=settings, manifests=manifests, base=base) as node:
        yield node


def text(words: str, **metadata: Any) -> dict[str, Any]:
    part = {"type": "text", "content": words}
    return {**part, "metadata": metadata} if metadata else part


def to(agent_id: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"recipient": {"id": agent_id, "type": "agent"}, "parts": list(parts), **more}


async def said_to(node: Node, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The reply to a message that was sent, once it is there."""
    reply = await node.send("GET", f"/v1/messages/{message['id']}/reply?wait=30", **more)
    assert reply.status == 200, reply.body
    return dict(reply.json)


async def sent(node: Node, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    reply = await node.send("POST", "/v1/messages", json=body, **more)
    assert reply.status == 201, reply.body
    return dict(reply.json)


async def ended(node: Node, task_id: str, **more: Any) -> dict[str, Any]:
    """A task, once it is over."""
    found: dict[str, Any] = {}

    async def is_over() -> bool:
        found.update((await node.send("GET", f"/v1/tasks/{task_id}", **more)).json)
        return found["status"] not in ("pending", "running")

    await eventually(is_over)
    return found


@asynccontextmanager
async def events(node: Node, path: str, token: str | None = PSK, **headers: str) -> AsyncIterator[AsyncIterator[Any]]:
    """Server-sent events as (event, id, data)."""
    auth = {"Authorization": f"Bearer {token}"} if token else {}
    async with node.client.get(node.url + path, headers={**auth, **headers}) as response:
        assert response.status == 200, await response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield frames(response)
        response.close()


async def frames(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, int | None, Any]]:
    frame: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line and not line.startswith(":"):
            key, _, value = line.partition(": ")
            frame[key] = value
        elif frame:
            number = int(frame["id"]) if "id" in frame else None
            yield frame.get("event", "message"), number, json.loads(frame["data"])
            frame = {}


def check_error(reply: Any, status: int, code: str, **details: Any) -> dict[str, Any]:
    """Exactly the document's body."""
    assert reply.status == status, reply.body
    assert set(reply.json) == {"error"}
    error = reply.json["error"]
    assert set(error) == {"code", "message", "details"}
    assert error["code"] == code, error
    assert error["message"]
    assert {name: error["details"].get(name) for name in details} == details, error
    return dict(error)
