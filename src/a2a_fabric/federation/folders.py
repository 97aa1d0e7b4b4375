"""The folder of an agent: its card is read, and checked against what the folder holds.

    agent-name/
      agent.json      the card
      CLAUDE.md       instructions of an agent for Claude Code
      knowledge/*.md  what it should know (optional)
      .mcp.json       MCP servers that it uses (optional)
      README.md       for people (optional)

No path of a card leads out of its folder, also not by a symbolic link."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from a2a_fabric.core.agent import Manifest, iterate_strings, normalize_name
from a2a_fabric.core.federation import AgentOrigin
from a2a_fabric.federation.card import (
    CLAUDE_TYPE,
    PROGRAM_TYPES,
    Card,
    find_path_problem,
    manifest_from_card,
)
from a2a_fabric.federation.json_file import JSONFile
from a2a_fabric.federation.locations import CARD_FILE
from a2a_fabric.schemas.manifest_check import find_unbounded_schemas
from a2a_fabric.yamlfile import YamlPath

INSTRUCTIONS_FILE = "CLAUDE.md"
MCP_FILE = ".mcp.json"
KNOWLEDGE_FOLDER = "knowledge"
_ENV_PREFIX = "env:"


class AgentFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder whose card was read."""

    path: Path
    file: JSONFile
    card: Card


def read_folder(path: Path) -> AgentFolder:
    """Raises ConfigError, which names file, line and field."""
    file = JSONFile.load(path / CARD_FILE)
    return AgentFolder(path=path, file=file, card=decode_card(file))


def decode_card(file: JSONFile) -> Card:
    """A card from a file or an address, and right as far as its own text says. Raises ConfigError."""
    card = file.decode(Card)
    for location, problem in find_card_problems(card):
        raise file.error(problem, location)
    return card


def find_card_problems(card: Card) -> Iterator[tuple[YamlPath, str]]:
    """What makes a card unusable, besides its types."""
    names: dict[str, str] = {}
    for number, skill in enumerate(card.skills):
        if normalize_name(skill.id) in names:
            yield ("skills", number, "id"), f"there are two skills '{skill.id}'"
        names[normalize_name(skill.id)] = skill.id
    if sum(skill.default for skill in card.skills) > 1:
        yield ("skills",), "only one skill may be the default"
    for location, path in iterate_paths(card):
        problem = find_path_problem(path)
        if problem is not None:
            yield location, problem
    invocation = card.invocation
    if invocation is None:
        return
    if invocation.type not in PROGRAM_TYPES and not (invocation.url or invocation.command or invocation.options):
        yield ("invocation",), f"an agent of type '{invocation.type}' needs a `url`"
    if invocation.type in ("process", "agent-client") and not invocation.command:
        yield ("invocation",), f"an agent of type '{invocation.type}' needs a `command`"
    if invocation.type == "python" and not (invocation.url or "").startswith("python:"):
        yield ("invocation",), "an agent of type 'python' needs a `url` such as python:agent:agent"


def iterate_paths(card: Card) -> Iterator[tuple[YamlPath, str]]:
    """Every path of the card with its field."""
    invocation = card.invocation
    if invocation is not None:
        for name, path in (
            ("systemPrompt", invocation.system_prompt),
            ("mcpConfig", invocation.mcp_config),
            ("knowledgePath", invocation.knowledge_path),
        ):
            if path is not None:
                yield ("invocation", name), path
        for key in ("path", "cwd"):
            if isinstance(path := invocation.options.get(key), str):
                yield ("invocation", "options", key), path
    for number, path in enumerate(card.dependencies.knowledge if card.dependencies is not None else ()):
        yield ("dependencies", "knowledge", number), path


def find_folder_problems(folder: AgentFolder) -> Iterator[tuple[YamlPath, str]]:
    """Files that the card names and that do not exist, or that are outside the folder by a symbolic link."""
    root = folder.path.resolve()
    for location, path in iterate_paths(folder.card):
        if find_path_problem(path) is not None:
            continue  # the card's own problem
        target = (root / path).resolve()
        if not target.is_relative_to(root):
            yield location, f"'{path}' leads out of the agent's folder by a symbolic link"
        elif not target.exists() and location[0] != "dependencies":
            yield location, f"'{path}' does not exist"
    invocation = folder.card.invocation
    if invocation is None or (invocation.type == CLAUDE_TYPE and invocation.system_prompt is None):
        instructions = root / INSTRUCTIONS_FILE
        if instructions.exists() and not instructions.resolve().is_relative_to(root):
            yield (), f"'{INSTRUCTIONS_FILE}' leads out of the agent's folder by a symbolic link"
        elif not instructions.exists():
            yield (), f"'{INSTRUCTIONS_FILE}' does not exist; an agent for Claude Code needs its instructions"


def manifest_from_folder(folder: AgentFolder, origin: AgentOrigin) -> Manifest:
    """Raises ConfigError."""
    for location, problem in find_folder_problems(folder):
        raise folder.file.error(problem, location)
    manifest = manifest_from_card(folder.card, str(folder.path.resolve()), origin)
    check_schemas(manifest, folder.file)
    return manifest


def check_schemas(manifest: Manifest, file: JSONFile) -> None:
    """Raises ConfigError for a schema whose validation would cost too much."""
    for number, key, problem in find_unbounded_schemas(manifest):
        raise file.error(f"{manifest.capabilities[number].name}: {key}: {problem}", ("skills",))


def find_secret_references(value: object) -> Iterator[str]:
    """Every `env:NAME` in a value, at any depth."""
    return (text for text in iterate_strings(value) if text.startswith(_ENV_PREFIX))
