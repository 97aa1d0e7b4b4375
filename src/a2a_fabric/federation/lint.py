"""Checks cards, folders and registries before a node reads them: errors, which a node refuses, and likely mistakes.

Each finding names the file, its line and the field. Nothing of a folder is run, and files are read up to a bound."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from a2a_fabric.core.agent import normalize_name
from a2a_fabric.core.coordination import find_rule_target
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.federation import AgentOrigin
from a2a_fabric.federation.card import CLAUDE_TYPE, Card, build_capabilities, manifest_from_card
from a2a_fabric.federation.folders import (
    INSTRUCTIONS_FILE,
    MCP_FILE,
    AgentFolder,
    decode_card,
    find_card_problems,
    find_folder_problems,
    iterate_paths,
)
from a2a_fabric.federation.json_file import MAX_REGISTRY_BYTES, JSONFile
from a2a_fabric.federation.locations import CARD_FILE, REGISTRY_FILE
from a2a_fabric.federation.registry_file import (
    REFERENCE_FILE,
    GitLocation,
    LocalLocation,
    RegistryDocument,
    migrate,
)
from a2a_fabric.federation.repositories import parse_repo
from a2a_fabric.federation.versions import find_version_problem, read_committed_cards
from a2a_fabric.importing.secrets import is_secret, url_holds_secret
from a2a_fabric.schemas.manifest_check import find_unbounded_schemas
from a2a_fabric.yamlfile import YamlPath

Level = Literal["error", "warning"]

_AGENTS_FOLDER = "agents"  # of a folder without a registry, as `agents new` makes it

_VAGUE_SIGNALS = frozenset(
    [
        "a",
        "an",
        "and",
        "any",
        "anything",
        "are",
        "ask",
        "assistant",
        "can",
        "could",
        "do",
        "does",
        "everything",
        "find",
        "for",
        "get",
        "give",
        "go",
        "hello",
        "help",
        "hey",
        "hi",
        "how",
        "i",
        "info",
        "information",
        "is",
        "it",
        "just",
        "let",
        "like",
        "look",
        "make",
        "me",
        "my",
        "need",
        "new",
        "no",
        "now",
        "of",
        "ok",
        "on",
        "one",
        "or",
        "please",
        "question",
        "show",
        "so",
        "some",
        "something",
        "stuff",
        "tell",
        "that",
        "the",
        "then",
        "thing",
        "things",
        "this",
        "to",
        "try",
        "use",
        "want",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "work",
        "yes",
        "you",
        "your",
    ]
)
_MIN_SIGNAL = 3  # letters of a word in a script with spaces
_SECRET_TEXT = re.compile(
    r"\b(?:sk|pk|rk)[-_](?:live|test|proj|ant)?[-_]?[A-Za-z0-9_-]{20,}|\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}|"
    r"\bglpat-[\w-]{16,}|\bxox[abeprs]-[\w-]{10,}|\bAKIA[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
)
_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MAX_SCANNED_FILES = 200
_MAX_SCANNED_BYTES = 256 * 1024


class LintFinding(msgspec.Struct, frozen=True, kw_only=True):
    level: Level
    place: str  # file and line
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.field + ': ' if self.field else ''}{self.message}"


class LintReport(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[LintFinding]
    agents: int  # cards that were read

    @property
    def errors(self) -> list[LintFinding]:
        return [each for each in self.findings if each.level == "error"]

    @property
    def warnings(self) -> list[LintFinding]:
        return [each for each in self.findings if each.level == "warning"]


class _Notes:
    """Collects findings."""

    def __init__(self) -> None:
        self.findings: list[LintFinding] = []

    def add(self, level: Level, file: JSONFile, location: YamlPath, message: str) -> None:
        field = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location).removeprefix(".")
        place = f"{file.name}:{file.find_line(location)}"
        self.findings.append(LintFinding(level=level, place=place, field=field, message=message))

    def add_error(self, error: ConfigError) -> None:
        """An error of a reader names its place itself."""
        match = re.match(r"(.*?:\d+): (?:([\w.\[\]$-]+): )?(.*)", error.message, re.DOTALL)
        place, field, message = (match[1], match[2] or "", match[3]) if match else (error.message, "", "")
        if not match and ": " in error.message:
            place, _, message = error.message.partition(": ")
        self.findings.append(LintFinding(level="error", place=place, field=field, message=message))


def lint_path(path: Path) -> LintReport:
    """A card, an agent's folder, a folder of such folders, or a registry."""
    notes = _Notes()
    registry = _find_registry(path)
    known: frozenset[str] | None = None  # all agents that there are, if that can be told
    if registry is None:
        folders = _list_folders(path, notes)
    else:
        folders, known = _lint_registry(registry, notes)
    cards = [folder for folder in (_lint_folder(each, notes) for each in folders) if folder is not None]
    _lint_versions(cards, notes)
    names: dict[str, Path] = {}
    for folder in cards:
        first = names.setdefault(folder.card.name, folder.path)
        if first != folder.path and registry is None:
            notes.add("error", folder.file, ("name",), f"there is another agent '{folder.card.name}' in {first}")
        if known is not None:
            _lint_named_agents(folder, known, notes)
    return LintReport(findings=notes.findings, agents=len(cards))


def lint_text(file: JSONFile) -> LintReport:
    """A card or a registry that was read from a URL."""
    notes = _Notes()
    try:
        if isinstance(file.value, dict) and "agents" in file.value:
            _lint_document(file, file.decode(RegistryDocument, migrate(file.value)), notes)
            return LintReport(findings=notes.findings, agents=0)
        card = decode_card(file)
    except ConfigError as error:
        notes.add_error(error)
        return LintReport(findings=notes.findings, agents=0)
    if card.invocation is None:
        notes.add("error", file, (), "a card at a URL needs an `invocation` that says where the agent is")
    _lint_card(card, file, notes)
    return LintReport(findings=notes.findings, agents=1)


def _find_registry(path: Path) -> Path | None:
    if path.is_file():
        return None if path.name == CARD_FILE else path
    return next((path / name for name in (REGISTRY_FILE, REFERENCE_FILE) if (path / name).is_file()), None)


def _list_folders(path: Path, notes: _Notes) -> list[Path]:
    if path.is_file():
        return [path.parent]
    if (path / CARD_FILE).exists() or not path.is_dir():
        return [path]
    folders = [each for each in sorted(path.iterdir()) if each.is_dir() and not each.name.startswith(".")]
    with_cards = [each for each in folders if (each / CARD_FILE).exists()]
    if not with_cards and (path / _AGENTS_FOLDER).is_dir():
        return _list_folders(path / _AGENTS_FOLDER, notes)
    if not with_cards and not (path / INSTRUCTIONS_FILE).exists():
        message = f"there is no agent here: neither {CARD_FILE} nor {REGISTRY_FILE}, nor a folder with one"
        notes.findings.append(LintFinding(level="error", place=str(path), field="", message=message))
        return []
    if not with_cards:
        return [path]
    for each in folders:
        if each not in with_cards and (each / INSTRUCTIONS_FILE).exists():
            message = f"the folder has no {CARD_FILE}, which every agent must have"
            notes.findings.append(LintFinding(level="error", place=str(each), field="", message=message))
    return with_cards


def _lint_folder(path: Path, notes: _Notes) -> AgentFolder | None:
    try:
        file = JSONFile.load(path / CARD_FILE)
        card = file.decode(Card)
    except ConfigError as error:
        notes.add_error(error)
        return None
    folder = AgentFolder(path=path, file=file, card=card)
    problems = [*find_card_problems(card), *find_folder_problems(folder)]
    for location, problem in dict.fromkeys(problems):
        notes.add("error", file, location, problem)
    _lint_card(card, file, notes)
    if not problems:
        _lint_files(folder, notes)
    return folder


def _lint_card(card: Card, file: JSONFile, notes: _Notes) -> None:
    manifest = manifest_from_card(card, "", AgentOrigin(location="local"))
    for number, key, problem in find_unbounded_schemas(manifest):
        notes.add("error", file, ("skills", number), f"{key}: {problem}")
    for number, signal in enumerate(card.signals):
        if (reason := _find_signal_problem(signal)) is not None:
            notes.add("warning", file, ("signals", number), reason)
    for number, capability in enumerate(card.capabilities):
        if not _SNAKE_CASE.fullmatch(capability.name):
            notes.add("warning", file, ("capabilities", number, "name"), f"'{capability.name}' is not snake_case")
    for number, skill in enumerate(card.skills):
        for position, trigger in enumerate(skill.triggers):
            if (reason := _find_signal_problem(trigger)) is not None:
                notes.add("warning", file, ("skills", number, "triggers", position), reason)
    for field, is_present, why in (
        ("skills", card.skills or card.capabilities, "say what the agent does"),
        ("signals", card.signals, "without them words do not choose the agent"),
        ("invocation", card.invocation, "without it the folder cannot be used elsewhere"),
        ("context", card.context, "say for whom the agent is: personal, work or shared"),
        ("provider", card.provider, "say who maintains the agent"),
        ("observability", card.observability, "say how its calls appear in traces and logs"),
    ):
        if not is_present:
            notes.add("warning", file, (), f"`{field}` is missing: {why}")
    _lint_dependencies(card, file, notes)
    _lint_command(card, file, notes)


def _find_signal_problem(signal: str) -> str | None:
    words = signal.split()
    if signal != signal.lower():
        return f"'{signal}' is not in lowercase"
    if signal.strip() != signal or not words:
        return f"'{signal}' begins or ends with a space"
    if all(word in _VAGUE_SIGNALS for word in words) or (signal.isascii() and len(signal) < _MIN_SIGNAL):
        return f"'{signal}' is vague: it matches too many requests"
    return None


def _lint_dependencies(card: Card, file: JSONFile, notes: _Notes) -> None:
    names = {normalize_name(each.name) for each in build_capabilities(card.skills, card.capabilities)}
    for number, dependency in enumerate(card.dependencies.mcps if card.dependencies is not None else ()):
        for position, capability in enumerate(dependency.capabilities):
            if normalize_name(capability) not in names:
                location = ("dependencies", "mcps", number, "capabilities", position)
                notes.add("warning", file, location, f"the agent has no skill '{capability}'")


def _lint_command(card: Card, file: JSONFile, notes: _Notes) -> None:
    for number, word in enumerate(card.invocation.command or () if card.invocation is not None else ()):
        if os.path.isabs(word):
            notes.add("warning", file, ("invocation", "command", number), f"'{word}' is a path of one machine")


def _lint_files(folder: AgentFolder, notes: _Notes) -> None:
    root = folder.path
    for location, path in iterate_paths(folder.card):
        if location[0] == "dependencies" and not (root / path).is_file():
            notes.add("error", folder.file, location, f"the knowledge file '{path}' does not exist")
    _lint_mcp(folder, notes)
    for file in _list_text_files(root):
        if file.name == ".env" or file.suffix in (".pem", ".key", ".p12"):
            message = "secrets do not belong into an agent's folder; keep them in the environment"
            notes.findings.append(LintFinding(level="warning", place=str(file), field="", message=message))
        elif file.name != MCP_FILE:
            _lint_text_file(file, notes)


def _lint_text_file(path: Path, notes: _Notes) -> None:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_SCANNED_BYTES).decode(errors="replace")
    except OSError:
        return
    if (match := _SECRET_TEXT.search(text)) is not None:
        line = text.count("\n", 0, match.start()) + 1
        message = f"this looks like a secret ({match[0][:6]}…); keep it in the environment"
        notes.findings.append(LintFinding(level="warning", place=f"{path}:{line}", field="", message=message))


def _list_text_files(root: Path) -> Iterator[Path]:
    count = 0
    for folder, names, files in os.walk(root):
        names[:] = [each for each in names if each not in (".git", "node_modules", "__pycache__", ".venv")]
        for name in sorted(files):
            count += 1
            if count > _MAX_SCANNED_FILES:
                return
            path = Path(folder) / name
            if not path.is_symlink():
                yield path


def _lint_mcp(folder: AgentFolder, notes: _Notes) -> None:
    card = folder.card
    named = card.invocation.mcp_config if card.invocation is not None else None
    path = folder.path / (named or MCP_FILE)
    servers: Mapping[str, Any] = {}
    if path.is_file():
        try:
            file = JSONFile.load(path)
        except ConfigError as error:
            notes.add_error(error)
            return
        servers = file.value.get("mcpServers", {}) if isinstance(file.value, dict) else {}
        if not isinstance(servers, dict):
            notes.add("error", file, ("mcpServers",), "it is not an object of servers by name")
            return
        for name, server in servers.items():
            for location, message in _find_credentials(server, ("mcpServers", name)):
                notes.add("warning", file, location, message)
    is_claude = card.invocation is None or card.invocation.type == CLAUDE_TYPE
    for number, dependency in enumerate(card.dependencies.mcps if card.dependencies is not None else ()):
        if dependency.name not in servers and (is_claude or path.is_file()):
            level: Level = "error" if dependency.required else "warning"
            where = ("dependencies", "mcps", number, "name")
            notes.add(level, folder.file, where, f"the MCP server '{dependency.name}' is not in {path.name}")


def _find_credentials(value: Any, location: YamlPath) -> Iterator[tuple[YamlPath, str]]:
    """Values that are secrets themselves instead of references to the environment; absolute paths, too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _find_credentials(inner, (*location, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _find_credentials(inner, (*location, number))
    elif isinstance(value, str) and "${" not in value:
        name = str(location[-1])
        if is_secret(name, value) or _SECRET_TEXT.search(value) or ("://" in value and url_holds_secret(value)):
            yield location, "this is a credential; write ${NAME} and set NAME in the environment"
        elif os.path.isabs(value):
            yield location, f"'{value}' is a path of one machine"


def _lint_named_agents(folder: AgentFolder, known: frozenset[str], notes: _Notes) -> None:
    """Agents that a card names, and that are not in the registry."""
    card = folder.card
    named: list[tuple[YamlPath, str]] = []
    if card.dependencies is not None:
        named += [(("dependencies", "agents", at), each) for at, each in enumerate(card.dependencies.agents)]
    for number, rule in enumerate(card.coordination.rules if card.coordination is not None else ()):
        if (target := find_rule_target(rule)) is not None:
            named.append((("coordination", "rules", number, "action"), target.agent_id))
    for location, agent in named:
        if agent not in known:
            notes.add("warning", folder.file, location, f"there is no agent '{agent}' in this registry")


def _lint_registry(path: Path, notes: _Notes) -> tuple[list[Path], frozenset[str] | None]:
    """The folders of its local agents, and the names of all its agents unless it includes other registries."""
    try:
        file = JSONFile.load(path, MAX_REGISTRY_BYTES)
        document = file.decode(RegistryDocument, migrate(file.value))
    except ConfigError as error:
        notes.add_error(error)
        return [], None
    _lint_document(file, document, notes)
    root = path.parent.parent if path.parent.name == "reference" else path.parent
    folders: list[Path] = []
    for name, entry in document.agents.items():
        location = entry.location
        if isinstance(location, LocalLocation):
            folder = root / location.path
            if os.path.isabs(location.path):
                where = ("agents", name, "location", "path")
                notes.add("warning", file, where, f"'{location.path}' is a path of one machine")
            if (folder / CARD_FILE).is_file():
                folders.append(folder)
            else:
                notes.add("error", file, ("agents", name, "location", "path"), f"there is no {CARD_FILE} in '{folder}'")
    _lint_unlisted(root, folders, file, notes)
    return folders, None if document.include else frozenset(document.agents)


def _lint_document(file: JSONFile, document: RegistryDocument, notes: _Notes) -> None:
    is_alone = not document.include  # others may be in the registries that it includes
    for skill, agent in document.skill_index.items():
        if agent not in document.agents and is_alone:
            notes.add("warning", file, ("skillIndex", skill), f"there is no agent '{agent}' in this registry")
        elif agent in document.agents:
            known = {each.id for each in document.agents[agent].skills}
            if known and skill not in known:
                notes.add("warning", file, ("skillIndex", skill), f"agent '{agent}' has no skill '{skill}'")
    default = document.routing.default_agent
    if default is not None and default not in document.agents and is_alone:
        notes.add("warning", file, ("routing", "defaultAgent"), f"there is no agent '{default}' in this registry")
    for name, entry in document.agents.items():
        for number, signal in enumerate(entry.signals):
            if (reason := _find_signal_problem(signal)) is not None:
                notes.add("warning", file, ("agents", name, "signals", number), reason)
        for own_skill in entry.skills:
            if document.skill_index and own_skill.id not in document.skill_index:
                message = f"the skill '{own_skill.id}' is not in skillIndex; rebuild it with: a2a-fabric registry index"
                notes.add("warning", file, ("agents", name, "skills"), message)
        if isinstance(entry.location, GitLocation):
            _lint_git(file, name, entry.location, notes)


def _lint_git(file: JSONFile, name: str, location: GitLocation, notes: _Notes) -> None:
    where = ("agents", name, "location")
    try:
        if not location.repo.startswith(("./", "../")):
            parse_repo(location.repo)
    except ValueError as exc:
        notes.add("error", file, (*where, "repo"), str(exc))
    if location.commit is None and not location.trust:
        notes.add("error", file, where, "the code is not pinned: name its `commit`, or say `trust: true`")


def _lint_unlisted(root: Path, folders: Iterable[Path], file: JSONFile, notes: _Notes) -> None:
    """Agents of the folder `agents` that the registry forgot."""
    listed = {each.resolve() for each in folders}
    agents = root / _AGENTS_FOLDER
    for path in sorted(agents.iterdir()) if agents.is_dir() else ():
        if (path / CARD_FILE).is_file() and path.resolve() not in listed:
            notes.add("warning", file, ("agents",), f"'{path}' has a card and is not in the registry")


def _lint_versions(folders: list[AgentFolder], notes: _Notes) -> None:
    for folder, before in read_committed_cards(folders):
        if (problem := find_version_problem(before, folder.card)) is not None:
            notes.add("warning", folder.file, ("version",), problem)
