"""`a2a-fabric check`"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import typer

from a2a_fabric import admittance
from a2a_fabric.app import Fabric
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Json
from a2a_fabric.cli.output import print_fields, print_json, print_line, print_table, remark
from a2a_fabric.cli.setup import Setup, plan
from a2a_fabric.cli.state import State
from a2a_fabric.config import Config, LogSettings, environment
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.disclosure import OPERATORS, shown_endpoint
from a2a_fabric.core.errors import ConfigError, FabricError
from a2a_fabric.demo.fleet import MOUNTED, manifests
from a2a_fabric.places import store_address
from a2a_fabric.registry.files import read_manifests
from a2a_fabric.schemas.validators import compile_for
from a2a_fabric.shipyard import runtime_kind
from a2a_fabric.stores.address import without_secrets
from a2a_fabric.yamlfile import YAMLFile

_LOCAL = ("process", "python")  # whether these could run is seen without talking to anybody
_PATIENCE = 30.0
_ANY_KEY = "no key is needed to look"


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    problems: list[str] = []
    warnings: list[str] = []
    config: str | None = None
    listen: str = ""
    store: str = ""
    doors: list[str] = []
    tools: int = 0
    agents: list[dict[str, Any]] = []


def run(config: ConfigFile = None, agents: AgentsFiles = None, as_json: Json = False) -> None:
    """Check the configuration and show what would run; opens no port.

    Example: a2a-fabric check
    """
    environ = environment()
    try:
        found = asyncio.run(_look(plan(config, agents or [], None, environ), environ))
    except ConfigError as error:
        found = Findings(ok=False, problems=[error.message])
    if as_json:
        print_json(found)
    else:
        _show(found)
    if not found.ok:
        raise typer.Exit(1)


async def _look(setup: Setup, environ: Mapping[str, str]) -> Findings:
    """Build everything that `up` would, in the same way, and take it down again before anything moves."""
    config = msgspec.structs.replace(setup.config, log=LogSettings(level="error"))
    node = _node(setup, config, environ)
    with setup.located():
        async with node:
            problems = [*node.registry.errors.values(), *await _problems(setup, node)]
            catalog = node.registry.catalog
            return Findings(
                ok=not problems,
                problems=problems,
                warnings=admittance.warnings(config),
                config=str(setup.config_file) if setup.config_file else None,
                listen=config.listen,
                store=without_secrets(store_address(setup.keeping(setup.home).config, setup.base)),
                doors=[str(table.get("kind")) for table in config.doors],
                tools=len(catalog.tools),
                agents=[_view(manifest) for manifest in catalog.agents],
            )


def _node(setup: Setup, config: Config, environ: Mapping[str, str]) -> Fabric:
    has_key = not config.auth.anonymous or environ.get("FABRIC_PSK") or State(environ).key.read()  # as `up` has it
    psk = _ANY_KEY if has_key else None
    mounted = MOUNTED if setup.is_demo else ()
    sources = [_Demo()] if setup.is_demo else setup.sources()
    looking = msgspec.structs.replace(config, store="memory:")  # the real one is neither needed nor touched
    with setup.located():
        return Fabric(
            looking,
            base=setup.base,
            sources=sources,
            agents=mounted,
            psk=psk,
            environ=environ,
            log_stream=io.StringIO(),
        )


class _Demo:
    """Source: the demo fleet as it would be, with nothing started."""

    name = "the demo fleet"

    async def load(self) -> list[Manifest]:
        return manifests()

    async def watch(self, changed: object) -> None:
        """They never change."""


async def _problems(setup: Setup, node: Fabric) -> list[str]:
    """What is wrong with single agents, each at the line where it is declared."""
    found: list[str] = []
    for path in setup.agents_files:
        if str(path) not in node.registry.errors:
            found += [message async for message in _problems_in(path, node)]
    return found


async def _problems_in(path: Path, node: Fabric) -> AsyncIterator[str]:
    file = YAMLFile.read(path)
    at: tuple[str, ...] = ("agents",) if isinstance(file.value, dict) else ()
    for number, manifest in enumerate(read_manifests(path)):
        try:
            await _try(manifest, node)
        except FabricError as error:
            what, _, _ = error.sentence.partition("\n")
            yield file.error(f"agent '{manifest.agent_id}': {what}", (*at, number)).message


async def _try(manifest: Manifest, node: Fabric) -> None:
    runtime = node.fleet.runtime_of(manifest)
    for capability in manifest.capabilities:
        if capability.input_schema:
            compile_for(manifest, capability)
    if runtime_kind(manifest) in _LOCAL:
        async with asyncio.timeout(_PATIENCE):
            await runtime.health()


def _view(manifest: Manifest) -> dict[str, Any]:
    endpoint = shown_endpoint(manifest, OPERATORS)
    where = endpoint["uri"] or " ".join(_command(manifest)) or endpoint["transport"]
    try:
        kind = runtime_kind(manifest)
    except FabricError:
        kind = "?"
    capabilities = [capability.name for capability in manifest.capabilities]
    return {"agent_id": manifest.agent_id, "runtime": kind, "endpoint": where, "capabilities": capabilities}


def _command(manifest: Manifest) -> list[str]:
    command = manifest.endpoint.get("command", [])
    return [command] if isinstance(command, str) else [str(word) for word in command]


def _show(found: Findings) -> None:
    for problem in found.problems:
        remark(f"Error: {problem}")
    for warning in found.warnings:
        remark(f"Warning: {warning}")
    if not found.ok:
        return
    print_fields(
        [
            ("configuration", found.config or "none (defaults)"),
            ("listens on", found.listen),
            ("store", found.store),
            ("doors", ", ".join(found.doors)),
            ("tools", str(found.tools)),
            ("agents", str(len(found.agents))),
        ]
    )
    if found.agents:
        print_line()
        rows = [
            (a["agent_id"], a["runtime"], a["endpoint"], ", ".join(a["capabilities"]) or "asked of it")
            for a in found.agents
        ]
        print_table(("agent", "runtime", "endpoint", "capabilities"), rows)
