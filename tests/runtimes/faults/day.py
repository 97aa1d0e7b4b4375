"""A bad day: one node, all of whose agents but one have something wrong with them, all asked at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2a_fabric.agent import Agent
from tests.fixtures.agents.calling import HERE, is_alive
from tests.fixtures.faulty import FAULTS
from tests.fixtures.node import WAIT_TIMEOUT, Node, check_envelope, eventually, running
from tests.runtimes.faults.reached import CAPABILITY, Reached

SHORT = 400  # milliseconds: where only the deadline ends it, it is the deadline that is tested
LONG = 25_000
CONFIG = {
    "limits": {"reply_bytes": 1024 * 1024, "drain_seconds": 0},
    "health": {"interval": 0, "timeout": 1},
    "breaker": {"failures": 1000},
    "routing": {"fallback": False},
}


@dataclass(frozen=True)
class Habit:
    """A bad one of a program's, as `bad_program.py` knows it."""

    name: str
    cause: str
    hangs: bool = False
    unless: str = ""  # another code than that of the time that is up, if the node has ended the program by then


HABITS: Mapping[str, Habit] = {
    habit.name: habit
    for habit in (
        Habit("exits", "code 3: out of cheese"),
        Habit("only-complains", "", hangs=True),
        Habit("ignores-everything", "", hangs=True),
        Habit("leaves-children", "code 4: out of cheese"),
        Habit("talks-rubbish", "", hangs=True),
        Habit("never-ends-its-line", "longer than|more than|larger than"),
        Habit("reads-nothing-and-closes-its-pipes", "", hangs=True, unless="AGENT_OFFLINE"),
    )
}


@dataclass(frozen=True)
class Wrong:
    """An agent with something wrong."""

    name: str
    manifest: dict[str, Any]
    hangs: bool

    @property
    def agent_id(self) -> str:
        return str(self.manifest["agent_id"])


Errors = Mapping[tuple[str, bool], dict[str, Any]]  # by what was wrong, and whether the call was streamed


async def with_addresses(reached: Reached) -> Errors:
    async with AsyncExitStack() as stack:
        places = {
            name: await stack.enter_async_context(fault.standing(reached.greeting)) for name, fault in FAULTS.items()
        }
        agents = [Wrong(name, reached.manifest(place.url, name), FAULTS[name].hangs) for name, place in places.items()]
        errors = await _asked(agents, streams=(False, True))
        for place in places.values():
            await place.deserted()
        return errors


async def with_programs(reached: Reached, folder: Path) -> Errors:
    def command(habit: str) -> list[str]:
        return [sys.executable, "-I", "-S", str(HERE / "bad_program.py"), habit, str(folder / habit)]

    async def buried() -> bool:
        return not any(is_alive(pid) for pid in _noted(folder))

    agents = [Wrong(each.name, reached.manifest(command(each.name), each.name), each.hangs) for each in HABITS.values()]
    agents.append(Wrong("missing", reached.manifest(["./no-such-program"], "missing"), hangs=False))
    errors = await _asked(agents, streams=(False,))
    await eventually(buried)
    return errors


def _noted(folder: Path) -> list[int]:
    return [int(pid) for note in folder.iterdir() for pid in note.read_text().split()]


def _steady() -> Agent:
    agent = Agent("steady")

    @agent.capability
    async def echo(task: str) -> str:
        return task

    return agent


async def _asked(agents: Sequence[Wrong], streams: Sequence[bool]) -> Errors:
    """All at once, while the steady agent answers as if nothing were."""
    manifests = [agent.manifest for agent in agents]
    async with asyncio.timeout(3 * WAIT_TIMEOUT), running(_steady(), manifests=manifests, config=CONFIG) as node:
        calls = {
            (agent.name, stream): asyncio.ensure_future(_error(node, agent, stream=stream))
            for agent in agents
            for stream in streams
        }
        while not all(call.done() for call in calls.values()):
            assert (await node.ask("steady", "echo", "hello"))["result"] == {"answer": "hello"}
            await asyncio.wait(calls.values(), timeout=0.1)
        return {key: call.result() for key, call in calls.items()}


async def _error(node: Node, agent: Wrong, *, stream: bool) -> dict[str, Any]:
    """As an object, whichever way it came."""
    timeout_ms = SHORT if agent.hangs else LONG
    if stream:
        final = (await node.events(agent.agent_id, CAPABILITY, "go", timeout_ms=timeout_ms))[-1]["data"]
        return dict(final["error"] or {"code": "none", "message": str(final), "details": {}})
    envelope = await node.ask(agent.agent_id, CAPABILITY, "go", timeout_ms=timeout_ms)
    check_envelope(envelope)
    if envelope["ok"]:
        return {"code": "none", "message": str(envelope), "details": {}}
    return {"code": envelope["error_code"], "message": envelope["error"], "details": envelope["error_details"]}
