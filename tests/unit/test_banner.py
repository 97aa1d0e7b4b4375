"""What `up` says to the person who started it: nothing that would fail when it is pasted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.cli.up import NodeKey, build_banner
from a2a_fabric.core.agent import Manifest

KEY = NodeKey(secret="kept-for-the-test", origin="made", path="/home/somebody/key")
PLACE = "sqlite:fabric.db"


def agent(agent_id: str, *capabilities: dict[str, Any]) -> Manifest:
    given = {"agent_id": agent_id, "endpoint": {"uri": "http://127.0.0.1:9001"}, "capabilities": capabilities}
    return msgspec.convert(given, Manifest)


def suggested(agents: Sequence[Manifest], *, is_demo: bool = False) -> str:
    """The second command, from the word after the program on."""
    lines = build_banner("http://127.0.0.1:8000", KEY, PLACE, agents, is_demo=is_demo).splitlines()
    second = [line for line in lines if line.startswith("    ")][1]
    return second[
        min(second.find(f" {word}") for word in ("call ", "tools", "describe ") if f" {word}" in second) + 1 :
    ]


def test_only_the_demo_promises_that_its_mcp_server_converts() -> None:
    asked = "call units convert --arg value=26.2 --arg unit=mi --arg to=km"
    assert suggested([agent("units", {"name": "convert"})], is_demo=True) == asked
    assert suggested([agent("percy", {"name": "count"})]) == 'call percy count "..."'


def test_the_first_agent_that_says_what_it_does_is_suggested_with_what_it_needs() -> None:
    schema = {"properties": {"value": {}, "unit": {}, "note": {}}, "required": ["value", "unit"]}
    agents = [agent("silent"), agent("units", {"name": "convert", "input_schema": schema})]
    assert suggested(agents) == "call units convert --arg value=... --arg unit=..."


def test_words_go_where_a_task_is_taken() -> None:
    schema = {"properties": {"task": {"type": "string"}, "tone": {}}, "required": ["task", "tone"]}
    assert suggested([agent("poet", {"name": "rhyme", "input_schema": schema})]) == (
        'call poet rhyme "..." --arg tone=...'
    )


def test_agents_whose_abilities_are_not_known_yet_are_looked_at_and_none_leaves_the_tools() -> None:
    assert suggested([agent("silent")]) == "describe silent"
    assert suggested([]) == "tools"


def test_the_password_of_the_store_is_not_shown() -> None:
    said = build_banner(
        "http://127.0.0.1:8000", KEY, "postgresql://ann:s3cret@db/fabric?password=s3cret", [], is_demo=False
    )
    assert "  Store   postgresql://ann@db/fabric\n" in said
    assert "s3cret" not in said
    assert "  Store   memory: " in build_banner("http://127.0.0.1:8000", KEY, "memory:", [], is_demo=False)
