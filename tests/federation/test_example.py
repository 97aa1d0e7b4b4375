"""The sample federation at every door: what its cards say is what callers see, and its agents answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.federation.sample import copy_example, edit_registry, running_example, serving_far
from tests.fixtures.mcp_client import client
from tests.fixtures.node import Node, eventually
from tests.marks import requirement

ALL = {"basil", "calendar", "units", "wise", "far"}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    with serving_far() as far:
        async with running_example(copy_example(tmp_path, far)) as node:
            yield node


async def list_agents(node: Node) -> dict[str, Any]:
    page = await node.operation("fabric.agent.list")
    return {each["agent_id"]: each for each in page["result"]["agents"]}


@requirement("003-01", "003-26")
async def test_agents_of_folders_repositories_and_addresses_are_one_list(node: Node) -> None:
    agents = await list_agents(node)
    assert set(agents) == ALL
    assert node.fabric.registry.left_out == {}
    assert agents["basil"]["role"] == "Sous Chef"
    assert agents["basil"]["audience"] == "personal"
    assert agents["basil"]["signals"] == ["recipe", "ingredients", "dinner"]
    assert agents["basil"]["provider"] == {"name": "The Fabric examples", "contact": "kitchen@example.com"}
    assert agents["far"]["role"] == "Herald"
    words = node.fabric.registry.word_routing
    assert words.skill_index["give-advice"] == "wise"
    assert words.switch_commands == ("talk to", "switch to")
    assert words.multi_agent_triggers == ("and also", "then")
    assert words.default_agent is None


@requirement("003-02", "003-05")
async def test_a_local_agent_is_called_in_its_folder(node: Node) -> None:
    assert (await node.ask("units", "convert_length", "", context={"miles": 10}))["result"] == {"kilometres": 16.093}
    slot = await node.ask("calendar", "find-slot", "", context={"day": "Monday"})
    assert slot["result"]["hour"] == 11


@requirement("003-08", "003-10", "003-11", "003-21")
async def test_the_whole_card_is_described_with_skills_and_legacy_capabilities(node: Node) -> None:
    described = (await node.operation("fabric.agent.describe", {"agent_id": "basil"}))["result"]["agent"]
    assert [each["name"] for each in described["capabilities"]] == ["parse-recipe", "suggest-meal"]
    assert described["capabilities"][0]["triggers"] == ["this recipe", "recipe from"]
    assert described["dependencies"]["agents"] == ["calendar", "units"]
    assert described["coordination"]["rules"][0]["action"] == "ask calendar for a slot"
    assert described["observability"]["attributes"] == {"team": "kitchen"}
    assert described["metadata"] == {"author": "The Fabric examples", "created": "2026-11-18"}
    assert described["tags"] == ["food"]
    assert described["takes_tasks"] is True
    assert described["version"] == "1.0.0"
    units = (await node.operation("fabric.agent.describe", {"agent_id": "units"}))["result"]["agent"]
    assert units["capabilities"][0]["input_schema"]["properties"]["miles"] == {"type": "number"}
    assert units["capabilities"][0]["output_schema"]["properties"] == {"kilometres": {"type": "number"}}


@requirement("003-18")
async def test_the_card_is_seen_at_the_a2a_mcp_rest_and_search_doors(node: Node) -> None:
    card = (await node.send("GET", "/agents/basil/.well-known/agent-card.json")).json
    assert card["provider"] == {"organization": "The Fabric examples", "url": "mailto:kitchen@example.com"}
    assert {each["id"] for each in card["skills"]} == {"parse-recipe", "suggest-meal"}
    assert "this recipe" in card["skills"][0]["examples"]
    profile = next(each for each in card["capabilities"]["extensions"] if each["uri"].endswith("agent-profile"))
    assert profile["params"]["signals"] == ["recipe", "ingredients", "dinner"]
    async with client(node) as connected:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
        assert {"basil_parse_recipe", "calendar_find_slot", "wise_give_advice", "far_shout"} <= set(tools)
        answer = await connected.call_tool("calendar_find_slot", {"day": "Tuesday"})
        assert answer.structured_content is not None
        assert answer.structured_content["hour"] == 9
    hits = (await node.operation("fabric.agent.search", {"query": "herald"}))["result"]["results"]
    assert hits[0]["agent_id"] == "far"
    hits = (await node.operation("fabric.agent.search", {"query": "ingredients"}))["result"]["results"]
    assert hits[0]["agent_id"] == "basil"
    listed = (await node.send("GET", "/v1/agents/basil")).json
    assert listed["capabilities"] == ["parse-recipe", "suggest-meal"]
    catalog = (await node.send("GET", "/.well-known/ai-catalog.json")).json["entries"]
    entry = next(each for each in catalog if each.get("metadata", {}).get("agent_id") == "basil")
    for metadata in (listed["metadata"], entry["metadata"]):
        assert (
            metadata.items() >= {"role": "Sous Chef", "context": "personal", "provider": "The Fabric examples"}.items()
        )
        assert metadata["signals"] == ["recipe", "ingredients", "dinner"]


@requirement("003-11", "003-12")
async def test_signals_choose_an_agent_whose_card_has_capabilities_in_the_older_form(node: Node) -> None:
    asked = await node.operation("fabric.ask", {"text": "convert 10 miles"})
    assert asked["ok"], asked
    assert asked["result"]["kilometres"] == 16.093
    assert asked["result"]["_fabric"]["reason"] == "'units' answers, because the request has its signal 'convert'."


@requirement("003-16")
async def test_a_remote_card_is_called_at_the_address_that_it_names(node: Node) -> None:
    assert (await node.ask("far", "shout", "hello"))["result"] == {"answer": "HELLO!"}


@requirement("003-03", "003-04", "003-30", "003-31")
async def test_a_git_agent_is_cloned_at_its_first_use_and_says_which_commit_answered(
    node: Node, tmp_path: Path
) -> None:
    external = tmp_path / "federation" / "agents" / "external"
    assert (await list_agents(node))["wise"]["status"] == "unknown"
    assert not external.exists()
    answer = await node.ask("wise", "give-advice", "shall I?")
    assert answer["result"] == {"advice": "Sleep on it.", "about": "shall I?"}
    assert (external / "wise" / "agent.json").is_file()
    commit = json.loads((tmp_path / "federation" / "registry.json").read_text())["agents"]["wise"]["location"]["commit"]
    assert f"answered by commit {commit}" in answer["notes"]

    async def is_completed() -> bool:
        described = (await node.operation("fabric.agent.describe", {"agent_id": "wise"}))["result"]["agent"]
        return bool(described["origin"].get("commit") == commit and described["version"] == "2.0.0")

    await eventually(is_completed)


@requirement("003-14", "003-15", "003-25")
async def test_instructions_personality_and_knowledge_reach_the_prompt(tmp_path: Path) -> None:
    folder = copy_example(tmp_path)
    overlay = folder / "personal" / "basil" / "knowledge"
    overlay.mkdir(parents=True)
    (overlay / "guests.md").write_text("Ada comes on Friday.")
    async with running_example(
        folder, federation={"overlay": "personal", "git": {"allow": ["*"], "schemes": ["file"]}}
    ) as node:
        answer = await node.ask("basil", "parse-recipe", "echo")
        assert answer["ok"], answer
        options = json.loads(answer["result"]["answer"])["options"]
        prompt = await asyncio.to_thread(Path(options["append_system_prompt_file"]).read_text)
        for words in ("sous chef of this house", "strict about salt", "no coriander", "Ada comes on Friday"):
            assert words in prompt


async def test_an_edited_card_and_a_new_entry_are_seen_while_the_node_runs(tmp_path: Path) -> None:
    folder = copy_example(tmp_path)
    async with running_example(folder) as node:
        card = folder / "agents" / "units" / "agent.json"
        card.write_text(card.read_text().replace('"Converter"', '"Surveyor"'))

        async def is_seen() -> bool:
            return bool((await list_agents(node))["units"].get("role") == "Surveyor")

        await eventually(is_seen)
        edit_registry(folder, lambda registry: registry["agents"].pop("calendar"))

        async def is_gone() -> bool:
            return "calendar" not in await list_agents(node)

        await eventually(is_gone)


async def test_a_broken_card_keeps_its_last_good_form_and_the_others_work_on(tmp_path: Path) -> None:
    folder = copy_example(tmp_path)
    async with running_example(folder) as node:
        card = folder / "agents" / "units" / "agent.json"
        card.write_text('{"name": "units", // a comment\n}')

        async def is_reported() -> bool:
            problems = (await node.operation("fabric.health"))["result"]["problems"]
            return any("agent.json:1: not valid JSON: JSON has no comments" in each for each in problems.values())

        await eventually(is_reported)
        assert (await node.ask("units", "convert_length", "", context={"miles": 10}))["ok"]
        assert (await node.ask("calendar", "find-slot", "", context={"day": "Friday"}))["result"]["hour"] == 10


async def test_the_attributes_of_a_card_are_on_its_log_lines(tmp_path: Path) -> None:
    folder = copy_example(tmp_path)
    card = folder / "agents" / "units" / "agent.json"
    value = json.loads(card.read_text())
    card.write_text(json.dumps({**value, "observability": {"attributes": {"team": "survey"}}}))
    async with running_example(folder) as node:
        await node.ask("units", "convert_length", "", context={"miles": 1})

        async def is_written() -> bool:
            return '"attributes":{"agent.name":"units","agent.role":"Converter","team":"survey"}' in node.log.getvalue()

        await eventually(is_written)


async def test_the_receipt_of_a_call_names_the_commit_that_answered(tmp_path: Path) -> None:
    folder = copy_example(tmp_path)
    more = {"receipts": {"enabled": True}, "identity": {"key_file": "node.key"}}
    async with running_example(folder, **more) as node:
        await node.ask("wise", "give-advice", "shall I?")
        await node.ask("units", "convert_length", "", context={"miles": 1})
        receipts: list[dict[str, Any]] = []

        async def are_written() -> bool:
            receipts[:] = [json.loads(each.body) for each in await node.fabric.store.receipts.read(limit=10)]
            return len(receipts) == 2

        await eventually(are_written)
        commits = {each["agent_id"]: each.get("commit") for each in receipts}
        registry = json.loads((folder / "registry.json").read_text())
        assert commits == {"wise": registry["agents"]["wise"]["location"]["commit"], "units": None}
