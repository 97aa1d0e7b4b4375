"""`a2a-fabric check`: check the configuration and show what would run, without opening a port."""

from __future__ import annotations

import asyncio
import io
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import typer

from a2a_fabric.app import Fabric
from a2a_fabric.cli.node_setup import NodeSetup, plan_setup
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, EnvFile, Json
from a2a_fabric.cli.output import print_fields, print_json, print_line, print_table, remark, shorten_names
from a2a_fabric.client.local_node import StateFolder
from a2a_fabric.config import Config, LogSettings, read_environment, resolve_env
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.disclosure import OPERATOR_PRINCIPAL, redact_endpoint
from a2a_fabric.core.errors import AgentOffline, ConfigError, FabricError
from a2a_fabric.demo.agents import MOUNTED, UNSTARTED_URL, build_manifests
from a2a_fabric.node.context import resolve_store_address
from a2a_fabric.node.exposure import (
    list_exposure_warnings,
    list_name_warnings,
    list_policy_warnings,
    list_view_warnings,
)
from a2a_fabric.node.runtime_factory import infer_runtime_kind
from a2a_fabric.registry.sources.files import read_manifests
from a2a_fabric.runtimes.programs import ProgramSpec, build_environment
from a2a_fabric.schemas.validators import compile_input_schema
from a2a_fabric.stores.address import redact_address
from a2a_fabric.yamlfile import YAMLFile

_LOCAL_RUNTIMES = ("process", "python")  # their health check needs no network
_HEALTH_TIMEOUT = 30.0
_PLACEHOLDER_KEY = "a key that is never used"


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    problems: list[str] = []
    warnings: list[str] = []
    config: str | None = None
    listen: str = ""
    store: str = ""
    doors: list[str] = []
    tools: int = 0
    agents: list[dict[str, Any]] = []


def run(config: ConfigFile = None, agents: AgentsFiles = None, env_file: EnvFile = None, as_json: Json = False) -> None:
    """Check the configuration and show what would run; opens no port.

    Example: a2a-fabric check
    """
    environ = read_environment()
    try:
        report = asyncio.run(_inspect(plan_setup(config, agents or [], None, environ, env_file)))
    except ConfigError as error:
        report = CheckReport(ok=False, problems=[error.message])
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


async def _inspect(setup: NodeSetup) -> CheckReport:
    """Build the node as `up` would, and close it before it serves anything."""
    config = msgspec.structs.replace(setup.config, log=LogSettings(level="error"))
    node = build_node(setup, config)
    with setup.locate_errors():
        async with node:
            warnings = await _compare_patterns(setup, node)
            registry = node.registry
            problems = [*registry.errors.values(), *registry.left_out.values(), *await _find_problems(setup, node)]
            catalog = node.registry.catalog
            return CheckReport(
                ok=not problems,
                problems=problems,
                warnings=[
                    *list_exposure_warnings(config),
                    *list_name_warnings(config),
                    *list_view_warnings(config.views, catalog),
                    *list_policy_warnings(config.policy, catalog),
                    *setup.remarks,
                    *setup.warn_of_unset(catalog.agents),
                    *_find_missing_programs(setup, catalog.agents),
                    *warnings,
                    *node.gateway.list_notices(OPERATOR_PRINCIPAL),
                ],
                config=str(setup.config_file) if setup.config_file else None,
                listen=config.listen,
                store=redact_address(resolve_store_address(setup.with_store_in(setup.own_folder).config, setup.base)),
                doors=[str(table.get("kind")) for table in config.doors],
                tools=len(catalog.tools),
                agents=[_describe_agent(manifest) for manifest in catalog.agents],
            )


async def _compare_patterns(setup: NodeSetup, node: Fabric) -> list[str]:
    """Where tools are chosen by patterns, ask the agents what they offer; a warning for those that did not say."""
    registry = node.registry
    chosen = [each.agent_id for each in registry.catalog.agents if registry.find_declaration(each).tools is not None]
    if not chosen and not setup.config.views:
        return []
    await registry.pending_descriptions.wait()
    silent = [agent_id for agent_id in chosen if not registry.get_agent(agent_id).capabilities]
    return [
        f"agent {agent_id}: it did not say what it offers, so `tools` could not be compared with it"
        for agent_id in silent
        if not registry.describe_tools(agent_id).problems
    ]


def build_node(setup: NodeSetup, config: Config) -> Fabric:
    """The node as `up` would build it, with a store and a log in memory."""
    # `up` has a key under the same conditions.
    has_key = not config.auth.anonymous or setup.environ.get("FABRIC_PSK") or StateFolder(setup.environ).key.read()
    psk = _PLACEHOLDER_KEY if has_key else None
    mounted = MOUNTED if setup.is_demo else ()
    sources = [_DemoSource()] if setup.is_demo else setup.build_sources()
    health = msgspec.structs.replace(config.health, first_list_timeout=_HEALTH_TIMEOUT)
    check_config = msgspec.structs.replace(config, store="memory:", health=health)  # the real store is not opened
    with setup.locate_errors():
        return Fabric(
            check_config,
            base=setup.base,
            sources=sources,
            agents=mounted,
            psk=psk,
            environ=setup.environ,
            log_stream=io.StringIO(),
            is_serving=False,
        )


def _find_missing_programs(setup: NodeSetup, agents: Iterable[Manifest]) -> Iterator[str]:
    """A warning for each MCP server whose program is not installed. It is not started."""
    for agent in agents:
        if agent.runtime != "mcp" or not agent.endpoint.get("command"):
            continue
        with suppress(ConfigError, ValueError):  # reported elsewhere: an unset variable, a quote that is not closed
            endpoint = resolve_env(agent.endpoint, setup.environ)
            command = endpoint["command"]
            program = ProgramSpec(
                agent_id=agent.agent_id,
                argv=tuple(shlex.split(command) if isinstance(command, str) else map(str, command)),
                env=build_environment(setup.environ, endpoint.get("env") or {}),
                cwd=setup.base.absolute() / str(endpoint.get("cwd", ".")),
            )
            try:
                program.find_executable()
            except AgentOffline as error:
                yield f"agent {agent.agent_id}: {error.full_message}"


class _DemoSource:
    """An agent source with the demo agents, of which none is started."""

    name = "the demo agents"

    async def load(self) -> list[Manifest]:
        return build_manifests()

    async def watch(self, changed: object) -> None:
        """The demo agents never change."""


async def _find_problems(setup: NodeSetup, node: Fabric) -> list[str]:
    """The problems of single agents, each with the line of its declaration."""
    problems: list[str] = []
    for path in setup.manifest_files:
        if str(path) not in node.registry.errors:
            problems += [message async for message in _find_problems_in(path, node)]
    return problems


async def _find_problems_in(path: Path, node: Fabric) -> AsyncIterator[str]:
    file = YAMLFile.read(path)
    at: tuple[str, ...] = ("agents",) if isinstance(file.value, dict) else ()
    for number, manifest in enumerate(read_manifests(path)):
        try:
            await _try_agent(manifest, node)
        except FabricError as error:
            sentence, _, _ = error.full_message.partition("\n")
            yield file.error(f"agent '{manifest.agent_id}': {sentence}", (*at, number)).message


async def _try_agent(manifest: Manifest, node: Fabric) -> None:
    runtime = node.runtime_pool.get_runtime(manifest)
    for capability in manifest.capabilities:
        if capability.input_schema:
            compile_input_schema(manifest, capability)
    if infer_runtime_kind(manifest) in _LOCAL_RUNTIMES:
        async with asyncio.timeout(_HEALTH_TIMEOUT):
            await runtime.health()


def _describe_agent(manifest: Manifest) -> dict[str, Any]:
    endpoint = redact_endpoint(manifest, OPERATOR_PRINCIPAL)
    address = endpoint["uri"] or " ".join(_read_command(manifest)) or endpoint["transport"]
    if address == UNSTARTED_URL:
        address = "started with the node"
    try:
        kind = infer_runtime_kind(manifest)
    except FabricError:
        kind = "?"
    capabilities = [capability.name for capability in manifest.capabilities]
    return {"agent_id": manifest.agent_id, "runtime": kind, "endpoint": address, "capabilities": capabilities}


def _read_command(manifest: Manifest) -> list[str]:
    command = manifest.endpoint.get("command", [])
    return [command] if isinstance(command, str) else [str(word) for word in command]


def _print_report(report: CheckReport) -> None:
    for problem in report.problems:
        remark(f"Error: {problem}")
    for warning in report.warnings:
        remark(f"Warning: {warning}")
    if not report.ok:
        return
    print_fields(
        [
            ("configuration", report.config or "none (defaults)"),
            ("listens on", report.listen),
            ("store", report.store),
            ("doors", ", ".join(report.doors)),
            ("tools", str(report.tools)),
            ("agents", str(len(report.agents))),
        ]
    )
    if report.agents:
        print_line()
        rows = [
            (
                agent["agent_id"],
                agent["runtime"],
                agent["endpoint"],
                shorten_names(agent["capabilities"]) or "discovered",
            )
            for agent in report.agents
        ]
        print_table(("agent", "runtime", "endpoint", "capabilities"), rows)
