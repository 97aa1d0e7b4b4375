"""The file of a federation: the commands `registry show`, `registry index` and `registry upgrade`."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.federation import read_skills
from a2a_fabric.cli.options import Json
from a2a_fabric.cli.output import print_fields, print_json, print_line, print_table, remark, report_errors
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.federation import AgentOrigin
from a2a_fabric.core.files import lock_folder, read_text, replace_text
from a2a_fabric.federation.locations import REGISTRY_FILE, is_url
from a2a_fabric.federation.registry_file import REFERENCE_FILE, parse_registry, rebuild_index, upgrade
from a2a_fabric.federation.settings import FederationSettings, GitSettings
from a2a_fabric.federation.source import FederationSource
from a2a_fabric.outbound.client import OutboundClient

RegistryPath = Annotated[
    str | None,
    typer.Argument(metavar="PATH", help="Default: registry.json or reference/agent-registry.json in this folder."),
]


def show_registry(path: RegistryPath = None, as_json: Json = False) -> None:
    """Show the agents, the skills and the routing of a registry, with all that it includes.

    Example: a2a-fabric registry show examples/federation
    """
    with report_errors(as_json=as_json):
        place = path if path is not None and is_url(path) else str(_find_file(path))
        source, agents = asyncio.run(_load(place))
    words = source.word_routing
    if as_json:
        routing = {name: value for name, value in msgspec.to_builtins(words).items() if name != "skill_index"}
        shown = [_describe(each) for each in agents]
        print_json(
            {"agents": shown, "skillIndex": words.skill_index, "routing": routing, "problems": dict(source.problems)}
        )
        return
    rows = [
        (each["name"], each["location"], each["context"], each["role"], ", ".join(each["skills"]))
        for each in map(_describe, agents)
    ]
    print_table(("agent", "location", "context", "role", "skills"), rows)
    print_line()
    print_fields(
        [
            ("orchestrator", words.orchestrator),
            ("default agent", words.default_agent or "none"),
            ("switch commands", ", ".join(words.switch_commands)),
            ("several agents", ", ".join(words.multi_agent_triggers)),
            ("skills", f"{len(words.skill_index)} in the index"),
        ]
    )
    for problem in source.problems.values():
        remark(f"Problem: {problem}")


async def _load(place: str) -> tuple[FederationSource, list[Manifest]]:
    """Everything that the registry names is shown, whatever a node would allow: nothing is cloned or called."""
    git = GitSettings(allow=("*",), schemes=("https", "http", "ssh", "file"))
    client = OutboundClient()
    source = FederationSource(place, FederationSettings(git=git), client)
    try:
        return source, list(await source.load())
    finally:
        await client.aclose()


def _describe(manifest: Manifest) -> dict[str, Any]:
    origin = manifest.origin or AgentOrigin(location="local")
    return {
        "name": manifest.agent_id,
        "location": " ".join(filter(None, (origin.location, origin.url, origin.ref[:12]))),
        "context": manifest.audience or "",
        "role": manifest.role,
        "signals": list(manifest.signals),
        "skills": [each.name for each in manifest.capabilities],
    }


def index_skills(
    path: RegistryPath = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if the index is not current.")] = False,
    as_json: Json = False,
) -> None:
    """Rebuild the index of a registry, which says which agent answers a skill.

    Example: a2a-fabric registry index
    """
    with report_errors(as_json=as_json):
        file = _find_file(path)
        with nullcontext() if check else lock_folder(file):
            before = read_text(file) or ""
            parse_registry(str(file), before)
            text = upgrade(str(file), before)
            after, index = rebuild_index(str(file), text, read_skills(file, text))
            if after != before and not check:
                replace_text(file, after)
    if as_json:
        print_json({"ok": not check or after == before, "changed": after != before, "skillIndex": index})
    else:
        outcome = "is current" if after == before else "is not current" if check else "was rebuilt"
        print_line(f"{file}: the index of {len(index)} skills {outcome}")
    if check and after != before:
        raise typer.Exit(1)


def upgrade_registry(path: RegistryPath = None, as_json: Json = False) -> None:
    """Write a registry of version 1.0 or 2.0 as 3.0.

    Example: a2a-fabric registry upgrade registry.json
    """
    with report_errors(as_json=as_json):
        file = _find_file(path)
        with lock_folder(file):
            before = read_text(file) or ""
            after = upgrade(str(file), before)
            if after != before:
                replace_text(file, after)
        document = parse_registry(str(file), after)
    if as_json:
        print_json({"ok": True, "changed": after != before, "agents": list(document.agents)})
    else:
        print_line(f"{file}: {'was upgraded to' if after != before else 'is already'} version {document.version}")


def _find_file(path: str | None) -> Path:
    """Raises ConfigError."""
    place = Path(path or ".")
    if place.is_file():
        return place
    for name in (REGISTRY_FILE, REFERENCE_FILE):
        if (place / name).is_file():
            return place / name
    raise ConfigError(f"{place / REGISTRY_FILE}: there is no such file. Make one with: a2a-fabric agents add")
