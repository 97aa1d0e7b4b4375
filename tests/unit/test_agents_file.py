from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.registry.health import HealthPolicy, HealthTracker
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.sources.files import AgentsFile, read_manifests
from tests.marks import requirement

WAIT_TIMEOUT = 30.0

LEAST = """\
- agent_id: percy
  endpoint:
    transport: http
    uri: http://127.0.0.1:8001/mcp
  capabilities:
    - name: reason
      streaming: true
      modalities: [text]
  trust_tier: org
  tags: [reasoning]
"""

FULL = """\
agents:
  - agent_id: percy
    node_id: node-1
    delegate_id: delegate-ai-001
    cog_id: cog-7
    realm: master
    display_name: Percy
    version: 1.0.0
    description: Reasons and plans.
    runtime: mcp
    endpoint: {transport: http, uri: "http://localhost:8001/mcp"}
    capabilities:
      - name: reason
        description: Think something through.
        streaming: true
        modalities: [text]
        input_schema: {type: object, properties: {task: {type: string}}, required: [task]}
        output_schema: {type: object, properties: {answer: {type: string}}}
        max_timeout_ms: 60000
      - {name: plan, streaming: false, modalities: [text]}
    trust_tier: org
    tags: [reasoning, planning]
  - agent_id: coder
    display_name: Coder
    version: 0.3.1
    runtime: mcp
    endpoint: {transport: http, uri: "http://localhost:8002/mcp"}
    capabilities: [{name: code, streaming: true, modalities: [text, code]}, {name: review, modalities: [code]}]
    tags: [code]
  - agent_id: vision
    runtime: agentzero
    endpoint: {transport: http, uri: "http://localhost:8003/agent"}
    capabilities:
      - {name: analyze_image, modalities: [image, text], max_timeout_ms: 120000}
      - {name: generate_image, modalities: [image]}
    trust_tier: public
  - agent_id: memory
    runtime: mcp
    endpoint: {transport: http, uri: "http://localhost:8004/mcp"}
    capabilities: [{name: store}, {name: recall}]
    trust_tier: local
  - agent_id: orchestrator
    runtime: custom-http
    endpoint: {transport: ws, uri: "ws://localhost:8005/mcp"}
    capabilities: [{name: coordinate, streaming: true}]
tools:
  - tool_id: io.read_file
    display_name: Read a file
    description: Reads.
    provider: builtin
    category: io
    trust_tier: local
    capabilities: [{name: read}]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agents.yaml"
    path.write_text(text, "utf-8")
    return path


def complaint(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_manifests(written(tmp_path, text))
    return caught.value.message.removeprefix(f"{tmp_path}/")


@requirement("001-46", "001-10", "001-45")
def test_the_least_manifest_loads_unchanged(tmp_path: Path) -> None:
    (percy,) = read_manifests(written(tmp_path, LEAST))
    assert percy.endpoint == {"transport": "http", "uri": "http://127.0.0.1:8001/mcp"}
    assert (percy.trust_tier, percy.tags) == ("org", ("reasoning",))
    capability = percy.find_capability("reason")
    assert capability is not None
    assert (capability.streaming, capability.modalities) == (True, ("text",))


@requirement("001-46", "001-10", "001-45")
def test_the_fuller_manifest_loads_unchanged_and_its_tools_are_passed_over(tmp_path: Path) -> None:
    agents = {manifest.agent_id: manifest for manifest in read_manifests(written(tmp_path, FULL))}
    assert list(agents) == ["percy", "coder", "vision", "memory", "orchestrator"]
    percy = agents["percy"]
    assert (percy.node_id, percy.version, percy.delegate_id, percy.cog_id, percy.realm) == (
        "node-1", "1.0.0", "delegate-ai-001", "cog-7", "master"
    )  # fmt: skip
    reason = percy.find_capability("reason")
    assert reason is not None
    assert (reason.max_timeout_ms, (reason.input_schema or {})["required"]) == (60000, ["task"])
    assert (agents["vision"].runtime, agents["memory"].trust_tier) == ("agentzero", "local")


@requirement("001-46")
def test_a_bare_list_and_one_under_agents_are_the_same(tmp_path: Path) -> None:
    bare = read_manifests(written(tmp_path, LEAST))
    nested = "agents:\n" + "".join(f"  {line}\n" for line in LEAST.splitlines())
    assert read_manifests(written(tmp_path, nested)) == bare


@pytest.mark.parametrize("text", ["", "[]", "agents:", "agents: []", "tools: []", "# nobody yet"])
def test_a_file_without_agents_is_no_error(tmp_path: Path, text: str) -> None:
    assert read_manifests(written(tmp_path, text)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            LEAST + "  trust_teir: org\n",
            "agents.yaml:11: [0].trust_teir: unknown key 'trust_teir' (nearest: trust",
        ),
        (LEAST + LEAST, "agents.yaml:11: [1]: agent 'percy' is declared twice"),
        ("agent: []\n", "agents.yaml:1: agent: unknown key 'agent' (known: agents)"),
        (
            "agents:\n- {agent_id: a b, endpoint: {}}\n",
            "agents.yaml:2: agents[0].agent_id: Expected `str` match",
        ),
        ("- {agent_id: a}\n", "agents.yaml:1: [0]: Object missing required field `endpoint`"),
        ("- {agent_id: a, endpoint: here}\n", "agents.yaml:1: [0].endpoint: Expected `object`, got `str`"),
        ("- {agent_id: a, endpoint: {}, trust_tier: friend}\n", "agents.yaml:1: [0].trust_tier: Invalid enum value"),
        ("words\n", "agents.yaml:1: Expected `array`, got `str`"),
        ("- agent_id: a\n  agent_id: b\n  endpoint: {}\n", "agents.yaml:2: not valid YAML: key 'agent_id' is written"),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert complaint(tmp_path, text).startswith(said)


def test_secrets_stay_references_in_the_catalog(tmp_path: Path) -> None:
    text = "- {agent_id: a, endpoint: {uri: 'http://x', token: 'env:TOKEN'}}\n"
    assert read_manifests(written(tmp_path, text))[0].endpoint["token"] == "env:TOKEN"


async def test_a_missing_default_file_is_no_error_another_is(tmp_path: Path) -> None:
    assert await AgentsFile(tmp_path / "agents.yaml", optional=True).load() == []
    with pytest.raises(ConfigError, match="cannot be read"):
        await AgentsFile(tmp_path / "agents.yaml").load()


class Kept:
    """A registry that follows one file, and can be waited for."""

    def __init__(self, path: Path) -> None:
        self.source = AgentsFile(path, optional=True)
        self.registry = Registry([self.source], [], HealthTracker(HealthPolicy()))
        self._reloaded = asyncio.Event()
        self.delays: list[float] = []

    async def changed(self) -> None:
        await self.registry.load(self.source)
        self._reloaded.set()

    async def reload(self) -> None:
        began_at = time.monotonic()
        async with asyncio.timeout(WAIT_TIMEOUT):
            await self._reloaded.wait()
        self._reloaded.clear()
        self.delays.append(time.monotonic() - began_at)

    @property
    def ids(self) -> list[str]:
        return [manifest.agent_id for manifest in self.registry.catalog.agents]


@requirement("001-10", "001-09")
async def test_edits_take_effect_within_a_second_and_a_broken_one_keeps_the_last_good(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST)
    kept = Kept(path)
    await kept.registry.load(kept.source)
    task = asyncio.ensure_future(kept.source.watch(kept.changed))
    try:
        path.write_text(LEAST + LEAST.replace("percy", "coder"), "utf-8")
        await kept.reload()
        assert kept.ids == ["percy", "coder"]
        path.write_text("- agent_id: [broken\n", "utf-8")
        await kept.reload()
        assert kept.ids == ["percy", "coder"]
        assert "not valid YAML" in kept.registry.errors[str(path)]
        replacement = tmp_path / "new"
        replacement.write_text(LEAST.replace("percy", "vision"), "utf-8")
        os.replace(replacement, path)
        await kept.reload()
        assert (kept.ids, kept.registry.errors) == (["vision"], {})
        assert min(kept.delays) < 1.0, kept.delays  # the machine may be busy; the way itself is quick
    finally:
        task.cancel()


async def test_an_edit_between_the_first_reading_and_the_watch_is_not_missed(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST)
    kept = Kept(path)
    await kept.registry.load(kept.source)
    path.write_text(LEAST.replace("percy", "programmer"), "utf-8")
    task = asyncio.ensure_future(kept.source.watch(kept.changed))
    try:
        await kept.reload()
        assert kept.ids == ["programmer"]
    finally:
        task.cancel()


def test_ids_that_could_break_a_line_or_a_path_are_refused(tmp_path: Path) -> None:
    for bad in ("a/b", "../a", "a b", "", "-a", "a\\u0000", "é", "x" * 129):
        complaint(tmp_path, f'- {{agent_id: "{bad}", endpoint: {{}}}}\n')


def test_the_manifest_names_an_attempts_place() -> None:
    assert Manifest(agent_id="percy", endpoint={}, node_id="node-1").label == "percy@node-1"
