"""What the page about finding agents tells people to type works as it stands there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from a2a_fabric.agent import Agent
from tests.fixtures.node import PSK, running
from tests.fixtures.pages import HERE, commands, needs_curl, typed
from tests.marks import requirement

pytestmark = needs_curl


def polyglot() -> Agent:
    agent = Agent("polyglot", description="Translates contracts.", tags=["law"])

    @agent.capability(name="translate-text")
    async def translate(text: str) -> str:
        return text

    return agent


@requirement("000-23")
async def test_the_lines_of_the_page_about_finding_agents_work(tmp_path: Path) -> None:
    async with running(polyglot()) as node:
        environ = {"FABRIC_URL": node.url, "FABRIC_TOKEN": PSK, "FABRIC_HOME": str(tmp_path), "TOKEN": PSK}
        lines = [line.replace(HERE, node.url) for line in commands("discovery.md")]
        catalog, card, words, by_address, by_body = [await asyncio.to_thread(typed, line, **environ) for line in lines]
        assert "polyglot" in {
            entry["metadata"].get("agent_id") for entry in json.loads(catalog)["entries"] if "metadata" in entry
        }
        assert json.loads(card)["capabilities"] == ["translate-text"]
        assert "polyglot" in words
        for found in (by_address, by_body):
            assert [each["agent_id"] for each in json.loads(found)["results"]] == ["polyglot"]
