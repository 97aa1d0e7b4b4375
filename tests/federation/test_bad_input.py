"""Cards and registries that are wrong: the message names file, line and field, and all other agents work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.federation.locations import is_federation_source
from a2a_fabric.federation.settings import FederationSettings
from a2a_fabric.federation.source import FederationSource
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from tests.federation.pages import Pages, serving_pages
from tests.fixtures.node import eventually, running
from tests.marks import requirement

GOOD = {
    "name": "good",
    "version": "1.0.0",
    "description": "x",
    "invocation": {"type": "http", "url": "http://x.example"},
}


@pytest.fixture
def pages() -> Iterator[Pages]:
    with serving_pages() as pages:
        yield pages


def write_card(folder: Path, value: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.json").write_text(value if isinstance(value, str) else json.dumps(value, indent=1))


async def load(location: Path | str, **settings: Any) -> tuple[FederationSource, dict[str, Any]]:
    source = FederationSource(location, FederationSettings(**settings))
    client = OutboundClient(Guard(allow=settings.get("allow", ())))
    source.http = client
    try:
        return source, {each.agent_id: each for each in await source.load()}
    finally:
        await client.aclose()


@requirement("003-06", "003-07")
@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ("not json", "agent.json:1: not valid JSON"),
        ('{\n // why\n "name": "bad"}', "agent.json:2: not valid JSON: JSON has no comments"),
        ('{"name": "bad",\n"name": "worse"}', "agent.json:2: 'name' is written twice"),
        ("[]", "agent.json:1: Expected `object`"),
        ({**GOOD, "name": "has spaces"}, "agent.json:2: name: expected a name of lowercase letters"),
        ({**GOOD, "name": "Upper"}, "agent.json:2: name:"),
        ({**GOOD, "version": "1"}, "agent.json:3: version: expected MAJOR.MINOR.PATCH, such as 1.0.0"),
        ({**GOOD, "description": 7}, "agent.json:4: description: Expected `str`, got `int`"),
        ({key: value for key, value in GOOD.items() if key != "version"}, "missing required field `version`"),
        ({**GOOD, "signls": []}, "unknown key 'signls' (nearest: signals"),
        ({**GOOD, "skills": [{"id": "a", "description": "x"}, {"id": "a", "description": "y"}]}, "two skills 'a'"),
        ({**GOOD, "skills": [{"id": "A b", "description": "x"}]}, "skills[0].id: expected kebab case"),
        ({**GOOD, "invocation": {"type": "http"}}, "invocation: an agent of type 'http' needs a `url`"),
        ({**GOOD, "invocation": {"type": "process"}}, "needs a `command`"),
        (
            {**GOOD, "invocation": {"type": "claude-subprocess", "systemPrompt": "../secret"}},
            "invocation.systemPrompt: '../secret' leads out of the agent's folder",
        ),
        (
            {**GOOD, "invocation": {"type": "claude-subprocess", "systemPrompt": "/etc/passwd"}},
            "is not relative to the agent's folder",
        ),
        (
            {**GOOD, "invocation": {"type": "claude-subprocess", "systemPrompt": "link.md"}},
            "'link.md' leads out of the agent's folder by a symbolic link",
        ),
        ({**GOOD, "invocation": {"type": "claude-subprocess"}}, "'CLAUDE.md' does not exist"),
        ({**GOOD, "dependencies": {"knowledge": ["../x.md"]}}, "dependencies.knowledge[0]: '../x.md' leads out"),
    ],
)
async def test_a_card_that_is_wrong_is_named_with_its_line_and_the_others_are_there(
    tmp_path: Path, card: Any, problem: str
) -> None:
    write_card(tmp_path / "bad", card)
    (tmp_path / "bad" / "link.md").symlink_to("/etc/hostname")
    write_card(tmp_path / "good", GOOD)
    source, agents = await load(tmp_path)
    assert set(agents) == {"good"}
    (message,) = source.problems.values()
    assert problem in message
    assert str(tmp_path / "bad" / "agent.json") in message


async def test_of_two_agents_of_one_name_the_first_stays_and_the_second_is_named(tmp_path: Path) -> None:
    write_card(tmp_path / "a", {**GOOD, "role": "first"})
    write_card(tmp_path / "b", {**GOOD, "role": "second"})
    source, agents = await load(tmp_path)
    assert agents["good"].role == "first"
    assert "b/agent.json: there is another agent 'good'" in str(source.problems)


@requirement("003-34")
@pytest.mark.parametrize("version", ["1.0", "2.0"])
async def test_older_registries_are_read(tmp_path: Path, version: str) -> None:
    write_card(tmp_path / "agents" / "good", GOOD)
    entry = {"name": "good", "description": "y", **({"signals": ["s"], "personality": "p"} if version == "2.0" else {})}
    (tmp_path / "registry.json").write_text(json.dumps({"version": version, "agents": [entry]}))
    source, agents = await load(tmp_path / "registry.json")
    assert agents["good"].description == "y"
    assert agents["good"].signals == (("s",) if version == "2.0" else ())
    assert not source.problems


async def test_includes_are_read_once_the_first_wins_and_a_circle_is_named(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_card(tmp_path / "agents" / name, {**GOOD, "name": name})
        (tmp_path / f"{name}.json").write_text(
            json.dumps(
                {
                    "version": "3.0",
                    "include": {"a": ["b.json", "missing.json"], "b": ["c.json"], "c": ["a.json"]}[name],
                    "agents": {
                        name: {"location": {"type": "local", "path": f"./agents/{name}"}},
                        **(
                            {"c": {"location": {"type": "local", "path": "./agents/c"}, "role": "of b"}}
                            if name == "b"
                            else {}
                        ),
                    },
                    "skillIndex": {"x": name},
                    "routing": {"defaultAgent": name, "switchCommands": [f"ask {name}"]},
                }
            )
        )
    source, agents = await load(tmp_path / "a.json")
    assert set(agents) == {"a", "b", "c"}
    assert agents["c"].role == "of b"
    assert "includes it again" in str(source.problems)
    assert "missing.json: cannot be read" in str(source.problems)
    assert source.word_routing.default_agent == "a"
    assert source.word_routing.skill_index["x"] == "a"
    assert source.word_routing.switch_commands == ("ask a", "ask b", "ask c")


async def test_an_entry_whose_card_has_another_name_or_is_missing_is_left_out(tmp_path: Path) -> None:
    write_card(tmp_path / "agents" / "good", GOOD)
    agents = {
        "other": {"location": {"type": "local", "path": "./agents/good"}},
        "gone": {"location": {"type": "local", "path": "./agents/gone"}},
        "good": {"location": {"type": "local", "path": "./agents/good"}},
    }
    (tmp_path / "registry.json").write_text(json.dumps({"version": "3.0", "agents": agents}))
    source, found = await load(tmp_path)
    assert set(found) == {"good"}
    assert "agents.other: the card" in str(source.problems)
    assert "gone/agent.json: cannot be read: No such file or directory" in str(source.problems)


async def test_a_registry_at_a_url_names_remote_agents_only(tmp_path: Path, pages: Pages) -> None:
    far = {**GOOD, "name": "far"}
    pages["/far.json"] = json.dumps(far)
    pages["/spy.json"] = json.dumps(
        {
            **GOOD,
            "name": "spy",
            "invocation": {"type": "http", "url": "http://x.example", "options": {"headers": {"k": "env:HOME"}}},
        }
    )
    pages["/prog.json"] = json.dumps({**GOOD, "name": "prog", "invocation": {"type": "process", "command": ["id"]}})
    pages["/bare.json"] = json.dumps({"name": "bare", "version": "1.0.0", "description": "x"})
    write_card(tmp_path / "agents" / "good", GOOD)
    remote = {
        name: {"location": {"type": "remote", "url": f"{pages.url}/{name}.json"}}
        for name in ("far", "spy", "prog", "bare")
    }
    pages["/registry.json"] = json.dumps(
        {
            "version": "3.0",
            "agents": {
                **remote,
                "good": {"location": {"type": "local", "path": str(tmp_path / "agents" / "good")}},
                "cloned": {"location": {"type": "git", "repo": "github.com/u/r", "trust": True}},
                "keyed": {
                    "location": {
                        "type": "remote",
                        "kind": "agent",
                        "url": "http://y.example",
                        "headers": {"k": "env:HOME"},
                    }
                },
                "node": {"location": {"type": "remote", "kind": "node", "url": "http://z.example"}},
            },
        }
    )
    source, agents = await load(f"{pages.url}/registry.json", allow=("127.0.0.1",))
    assert set(agents) == {"far", "node"}
    assert agents["far"].origin.location == "remote"
    assert agents["node"].runtime == "fabric"
    problems = "\n".join(source.problems.values())
    for words in (
        "agents.good.location: a registry at a URL may only name remote agents",
        "agents.cloned.location: a registry at a URL may only name remote agents",
        "agents.keyed.location: a registry at a URL cannot refer to this node's environment",
        "spy.json:1: invocation.options: a card at a URL cannot set `options` of a runtime",
        "a card at a URL cannot start programs on this machine",
        "a card at a URL needs an `invocation`",
    ):
        assert words in problems, words


async def test_an_address_that_is_away_private_or_wrong_does_not_keep_the_others_away(pages: Pages) -> None:
    pages["/agent.json"] = json.dumps(GOOD)
    source, agents = await load(f"{pages.url}/agent.json")
    assert agents == {}  # the guard refuses private addresses that the operator did not allow
    assert "list it in `federation.allow` of fabric.yaml (127.0.0.1)" in str(source.problems)
    source, agents = await load(f"{pages.url}/agent.json", allow=("127.0.0.1",))
    assert set(agents) == {"good"}
    pages["/agent.json"] = "{"
    source.http = OutboundClient(Guard(allow=("127.0.0.1",)))
    assert [each.agent_id for each in await source.load()] == ["good"]  # the last good form stays
    assert "not valid JSON" in str(source.problems)
    await source.http.aclose()
    source, agents = await load(f"{pages.url}/nothing.json", allow=("127.0.0.1",))
    assert "the server answered 404" in str(source.problems)


async def test_a_registry_of_10000_agents_is_read_while_it_is_edited(tmp_path: Path) -> None:
    entries = {
        f"agent-{number}": {
            "location": {"type": "remote", "kind": "agent", "url": f"http://a{number}.example"},
            "signals": [f"signal {number} {each}" for each in range(10)],
            "skills": [{"id": f"skill-{number}-{each}", "description": "x"} for each in range(5)],
        }
        for number in range(10_000)
    }
    text = json.dumps({"version": "3.0", "agents": entries})
    path = tmp_path / "registry.json"
    path.write_text(text)
    source, agents = await load(path)
    assert len(agents) == 10_000
    path.write_text(text[: len(text) // 2])  # as an editor leaves it for a moment
    with pytest.raises(Exception, match="not valid JSON"):
        await source.load()
    path.write_text(text.replace('"signal 7 7"', '"signal seven"'))
    assert len(await source.load()) == 10_000


async def test_a_remote_card_cannot_lead_the_node_to_a_private_address(tmp_path: Path, pages: Pages) -> None:
    secret = pages.url.replace("127.0.0.1", "127.0.0.2")  # another address of this machine
    pages["/agent.json"] = json.dumps({**GOOD, "invocation": {"type": "http", "url": secret}})
    config = {"agents": [f"{pages.url}/agent.json"], "federation": {"allow": ["127.0.0.1"]}, "store": "memory:"}
    async with running(config=config, base=tmp_path, from_files=True) as node:
        answer = await node.ask("good", "anything", "x")
        assert answer["error_code"] == "AGENT_OFFLINE"
        assert (await node.operation("fabric.agent.list"))["result"]["agents"][0]["agent_id"] == "good"


async def test_an_agent_that_registers_cannot_name_a_folder_of_this_machine(tmp_path: Path) -> None:
    async with running(base=tmp_path, config={"store": "memory:"}) as node:
        manifest = {
            "agent_id": "spy",
            "endpoint": {"transport": "http", "uri": "http://127.0.0.1:1"},
            "origin": {"location": "local", "folder": "/etc"},
            "dependencies": {"knowledge": ["passwd"]},
        }
        reply = await node.send("POST", "/mcp/register_agent", json=manifest)
        assert reply.json["ignored"] == ["dependencies", "origin"] or "origin" in reply.json["result"]["ignored"]
        spy = node.fabric.registry.catalog.get("spy")
        assert spy is not None
        assert spy.origin is None


async def test_a_folder_that_goes_away_and_comes_back_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    write_card(folder / "good", GOOD)
    async with running(config={"agents": ["agents"], "store": "memory:"}, base=tmp_path, from_files=True) as node:

        async def has_problem() -> bool:
            return bool((await node.operation("fabric.health"))["result"]["problems"])

        async def is_well() -> bool:
            return not await has_problem()

        folder.rename(tmp_path / "away")
        await eventually(has_problem)
        assert node.fabric.registry.catalog.get("good") is not None
        (tmp_path / "away").rename(folder)
        await eventually(is_well)


async def test_manifests_written_as_json_are_no_registry(tmp_path: Path) -> None:
    path = tmp_path / "agents.json"
    path.write_text(json.dumps([{"agent_id": "a", "endpoint": {"uri": "http://x.example"}}]))
    assert not is_federation_source(path)
    path.write_text(json.dumps({"version": "3.0", "agents": {}}))
    assert is_federation_source(path)


async def test_headers_go_to_the_host_of_the_card_only(tmp_path: Path, pages: Pages) -> None:
    pages["/near.json"] = json.dumps(
        {**GOOD, "name": "near", "invocation": {"type": "http", "url": f"{pages.url}/run"}}
    )
    pages["/thief.json"] = json.dumps({**GOOD, "name": "thief"})
    locations = {
        name: {"location": {"type": "remote", "url": f"{pages.url}/{name}.json", "headers": {"k": "env:KEY"}}}
        for name in ("near", "thief")
    }
    (tmp_path / "registry.json").write_text(json.dumps({"version": "3.0", "agents": locations}))
    source, agents = await load(tmp_path, allow=("127.0.0.1",))
    assert set(agents) == {"near"}
    assert agents["near"].endpoint["headers"] == {"k": "env:KEY"}
    assert "headers are only sent to the host of the card" in str(source.problems)
