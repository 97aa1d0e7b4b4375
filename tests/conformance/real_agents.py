"""Real agents behind a live node, one line for each expectation."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.conformance.agents.agent import AgentUnderTest
from tests.conformance.agents.claude_code import CLAUDE_CODE
from tests.conformance.agents.gemini import GEMINI
from tests.conformance.clients.client import Outcome, short
from tests.conformance.clients.place import Unexpected
from tests.conformance.commands import CommandFailed
from tests.conformance.npm import Npm

AGENTS = (CLAUDE_CODE, GEMINI)


async def are_well(npm: Npm) -> bool:
    print("\nreal agents")
    words = []
    for agent in AGENTS:
        async for outcome in _examined(agent, npm):
            print(outcome, flush=True)
            words.append(outcome.word)
    print("  " + ", ".join(f"{word}: {words.count(word)}" for word in ("pass", "FAIL", "skipped")))
    return "FAIL" not in words


async def _examined(agent: AgentUnderTest, npm: Npm) -> AsyncIterator[Outcome]:
    try:
        await npm.install_node()
        entry = str(await npm.install(agent.package, agent.entry))
    except CommandFailed as failed:
        yield Outcome("skipped", agent.package, "cannot be installed here", short(failed))
        return
    program = [npm.node, entry] if agent.is_script else [entry]
    for claim, check in agent.checks.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            try:
                await check(agent.home(program, Path(home)))
            except (Unexpected, TimeoutError, AssertionError, ValueError, KeyError) as failed:
                yield Outcome("FAIL", agent.package, claim, f"{type(failed).__name__}: {short(failed)}")
            else:
                yield Outcome("pass", agent.package, claim)
