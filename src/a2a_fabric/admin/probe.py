"""Finds out which protocol an address or a program speaks, and makes its entry for `agents.yaml`.

Secrets are replaced in the entry by references to environment variables."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric import plugins
from a2a_fabric.config import resolve_env
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.core.ports import load_module
from a2a_fabric.importing.secrets import References, Variable
from a2a_fabric.importing.servers import make_unique
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.probing.findings import Finding, ProbeReport, build_entry, suggest_agent_id
from a2a_fabric.runtimes.context import RuntimeContext

_ADDRESS_TIMEOUT, _PROGRAM_TIMEOUT = 5.0, 15.0  # seconds; a program may have to be downloaded first
_BEARER = "Bearer "
_MAX_DESCRIPTION = 200


class ProbeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`entry` is None if no protocol was recognised."""

    report: ProbeReport
    entry: dict[str, Any] | None = None
    is_present: bool = False  # agents.yaml has this entry already
    variables: tuple[Variable, ...] = ()  # to be set where the node runs
    capabilities: tuple[Capability, ...] = ()
    trouble: str | None = None  # why the agent did not list its capabilities


class ProbeTarget(msgspec.Struct, frozen=True, kw_only=True):
    """An address with its headers, or a program with its environment."""

    argv: tuple[str, ...]
    headers: dict[str, str] = {}
    env: dict[str, str] = {}
    timeout: float | None = None

    @property
    def is_address(self) -> bool:
        return len(self.argv) == 1 and self.argv[0].startswith(("http://", "https://"))

    @property
    def try_timeout(self) -> float:
        return self.timeout or (_ADDRESS_TIMEOUT if self.is_address else _PROGRAM_TIMEOUT)


async def run_probe(
    target: ProbeTarget,
    agent_id: str | None,
    present: Mapping[str, Manifest],
    environ: Mapping[str, str],
    base: Path,
) -> ProbeOutcome:
    """A program is started in `base`.

    Raises BadInput for an id that is invalid or taken, ConfigError for a variable that is not set.
    """
    report = await _detect(target, environ, base)
    finding = report.finding
    if finding is None:
        return ProbeOutcome(report=report)
    endpoint = {**finding.endpoint, **_build_options(finding, target)}
    chosen_id, references = _choose_id(finding, endpoint, agent_id, present)
    described, trouble = await _describe_agent(
        _build_manifest(chosen_id, finding.runtime, endpoint), target.try_timeout, environ, base
    )
    description = finding.description or " ".join(described.description.split())[:_MAX_DESCRIPTION]
    public_endpoint, existing = references.replace_endpoint(chosen_id, endpoint), present.get(chosen_id)
    return ProbeOutcome(
        report=report,
        entry=build_entry(chosen_id, finding.runtime, public_endpoint, description),
        is_present=existing is not None and existing.endpoint == public_endpoint,
        variables=tuple(references.variables.values()),
        capabilities=described.capabilities,
        trouble=trouble,
    )


async def _detect(target: ProbeTarget, environ: Mapping[str, str], base: Path) -> ProbeReport:
    """The probes are loaded on first use: they would make each start of a node slower."""
    name = "addresses" if target.is_address else "commands"
    probes: Any = await asyncio.to_thread(load_module, f"a2a_fabric.probing.{name}")
    report: ProbeReport
    if not target.is_address:
        report = await probes.probe_command(
            target.argv, environ, resolve_env(target.env, environ), base, target.try_timeout
        )
        return report
    http = OutboundClient()
    try:
        report = await probes.probe_address(
            http, target.argv[0], resolve_env(target.headers, environ), target.try_timeout
        )
        return report
    finally:
        await http.aclose()


def _build_options(finding: Finding, target: ProbeTarget) -> dict[str, Any]:
    """Environment or headers for the endpoint; the endpoint of another node has `psk` instead of a header."""
    if not target.is_address:
        return {"env": target.env} if target.env else {}
    if finding.runtime != "fabric":
        return {"headers": target.headers} if target.headers else {}
    authorization = next((value for name, value in target.headers.items() if name.lower() == "authorization"), "")
    return {"psk": authorization.removeprefix(_BEARER)} if authorization.startswith(_BEARER) else {}


def _choose_id(
    finding: Finding, endpoint: dict[str, Any], requested_id: str | None, present: Mapping[str, Manifest]
) -> tuple[str, References]:
    """The agent's id, and the references that replace its secrets. An agent that is present keeps its id."""
    name, references = requested_id or suggest_agent_id(finding), References()
    existing = present.get(name)
    if existing is None or existing.endpoint == references.replace_endpoint(name, endpoint):
        return name, references
    if requested_id is not None:
        raise BadInput(f"Agent '{requested_id}' exists already, with another endpoint. Choose another --id")
    return make_unique(name, present), References()


def _build_manifest(agent_id: str, runtime: str, endpoint: dict[str, Any]) -> Manifest:
    try:
        return msgspec.convert({"agent_id": agent_id, "runtime": runtime, "endpoint": endpoint}, Manifest)
    except msgspec.ValidationError as exc:
        raise BadInput(f"--id: {exc}") from exc


async def _describe_agent(
    manifest: Manifest, timeout: float, environ: Mapping[str, str], base: Path
) -> tuple[Manifest, str | None]:
    """The manifest with the capabilities that the agent lists, or the reason why it lists none."""
    http = OutboundClient()
    context = RuntimeContext(http=http, base=base, environ=environ)
    resolved = msgspec.structs.replace(manifest, endpoint=resolve_env(manifest.endpoint, environ))
    try:
        runtime = plugins.load_runtime(manifest.runtime or "").build(resolved, context)
        try:
            async with asyncio.timeout(2 * timeout):
                return await runtime.describe(), None
        finally:
            await runtime.aclose()
    except FabricError as error:
        return manifest, error.full_message
    except TimeoutError:
        return manifest, f"the agent did not answer within {2 * timeout:g} s"
    finally:
        await http.aclose()
