"""`a2a-fabric probe`: detect the protocol of an address or a program, and write its entry for agents.yaml.

Secrets are replaced in the entry by references to environment variables."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from a2a_fabric import plugins
from a2a_fabric.cli.files import read_text, replace_text
from a2a_fabric.cli.node_setup import AGENTS_FILE
from a2a_fabric.cli.options import Json, split_pairs
from a2a_fabric.cli.output import print_json, print_line, remark, report_errors
from a2a_fabric.config import read_environment, resolve_env
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.importing.agents_yaml import add_entries
from a2a_fabric.importing.secrets import References, Variable
from a2a_fabric.importing.servers import make_unique
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.probing import addresses, commands
from a2a_fabric.probing.findings import Finding, ProbeReport, build_entry, suggest_agent_id
from a2a_fabric.registry.sources.files import read_manifests
from a2a_fabric.runtimes.context import RuntimeContext

_ADDRESS_TIMEOUT, _PROGRAM_TIMEOUT = 5.0, 15.0  # seconds; a program may have to be downloaded first
_BEARER = "Bearer "
_MAX_DESCRIPTION = 200
_MAX_SHOWN = 20  # capabilities
_YAML_STYLE: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 110}


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
    target: ProbeTarget, agent_id: str | None, present: Mapping[str, Manifest], environ: Mapping[str, str]
) -> ProbeOutcome:
    """Raises BadInput for an id that is invalid or taken, ConfigError for a variable that is not set."""
    report = await _detect(target, environ)
    finding = report.finding
    if finding is None:
        return ProbeOutcome(report=report)
    endpoint = {**finding.endpoint, **_build_options(finding, target)}
    chosen_id, references = _choose_id(finding, endpoint, agent_id, present)
    described, trouble = await _describe_agent(
        _build_manifest(chosen_id, finding.runtime, endpoint), target.try_timeout, environ
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


async def _detect(target: ProbeTarget, environ: Mapping[str, str]) -> ProbeReport:
    if not target.is_address:
        return await commands.probe_command(
            target.argv, environ, resolve_env(target.env, environ), Path.cwd(), target.try_timeout
        )
    http = OutboundClient()
    try:
        return await addresses.probe_address(
            http, target.argv[0], resolve_env(target.headers, environ), target.try_timeout
        )
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
    manifest: Manifest, timeout: float, environ: Mapping[str, str]
) -> tuple[Manifest, str | None]:
    """The manifest with the capabilities that the agent lists, or the reason why it lists none."""
    http = OutboundClient()
    context = RuntimeContext(http=http, base=Path.cwd(), environ=environ)
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


def run(
    target: Annotated[
        list[str],
        typer.Argument(metavar="URL|COMMAND...", help="An address, or a program; after -- if it has options."),
    ],
    add: Annotated[bool, typer.Option("--add", help="Add the agent to agents.yaml.")] = False,
    agents: Annotated[Path, typer.Option("--agents", metavar="FILE", help="The file to add to.")] = Path(AGENTS_FILE),
    agent_id: Annotated[str | None, typer.Option("--id", metavar="NAME", help="The agent's id.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header for an address. VALUE may be env:NAME. Repeatable."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable for a program. VALUE may be env:NAME. Repeatable."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="For each attempt. Default: 5, for a program 15."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Add without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Detect the protocol of an address or program, and add the agent.

    Prints the entry for agents.yaml. A program is started as a node would start it, and always stopped.

    Example: a2a-fabric probe http://127.0.0.1:8001
    """
    with report_errors(as_json=as_json):
        before = read_text(agents) or ""
        present = {each.agent_id: each for each in read_manifests(agents)} if before.strip() else {}
        probe_target = ProbeTarget(
            argv=_split_target(target),
            headers=split_pairs(header or [], str),
            env=split_pairs(env or [], str),
            timeout=timeout,
        )
        outcome = asyncio.run(run_probe(probe_target, agent_id, present, read_environment()))
        entries = [outcome.entry] if add and outcome.entry is not None and not outcome.is_present else []
        after = add_entries(before, entries, str(agents))
        if as_json:
            _print_report(outcome, agents, is_added=yes and after != before)
        else:
            _print_outcome(outcome)
        if outcome.entry is None:
            raise typer.Exit(1)
        if after != before and (yes or (not as_json and typer.confirm(f"Add it to {agents}?", default=True, err=True))):
            replace_text(agents, after)
            if not as_json:
                remark(f"Added to {agents}. Check it with: a2a-fabric check")
        elif add and outcome.is_present and not as_json:
            remark(f"The agent is in {agents} already.")


def _split_target(target: list[str]) -> tuple[str, ...]:
    """A single argument may be a whole command line."""
    try:
        argv = shlex.split(target[0]) if len(target) == 1 else target
    except ValueError as exc:
        raise typer.BadParameter(f"{exc}") from exc
    if not argv or not argv[0]:
        raise typer.BadParameter("name an address or a program")
    return tuple(argv)


def _print_outcome(outcome: ProbeOutcome) -> None:
    """The entry goes to stdout, so that it can be redirected to a file; everything else to stderr."""
    attempts = outcome.report.attempts
    remark(f"Tried {outcome.report.target}")
    width = max((len(attempt.protocol) for attempt in attempts), default=0)
    for attempt in attempts:
        sign = "✓" if attempt.finding else "·"
        remark(f"  {sign} {attempt.protocol.ljust(width)}  {attempt.outcome} ({attempt.seconds:.2f} s)")
    if outcome.entry is None:
        remark("No protocol was recognised. docs/runtimes.md says how to describe other APIs and programs.")
        return
    _print_capabilities(outcome)
    print_line(yaml.safe_dump([outcome.entry], **_YAML_STYLE).rstrip("\n"))
    for variable in outcome.variables:
        remark(f"Set {variable.name} where the node runs ({variable.purpose}).")


def _print_capabilities(outcome: ProbeOutcome) -> None:
    if outcome.trouble is not None:
        remark(f"The agent did not list its capabilities: {outcome.trouble}")
    for capability in outcome.capabilities[:_MAX_SHOWN]:
        description = " ".join(capability.description.split())[:100]
        remark(f"  offers {capability.name}{': ' if description else ''}{description}")
    if len(outcome.capabilities) > _MAX_SHOWN:
        remark(f"  and {len(outcome.capabilities) - _MAX_SHOWN} more")
    remark("")


def _print_report(outcome: ProbeOutcome, agents: Path, *, is_added: bool) -> None:
    attempts = [
        {
            "protocol": attempt.protocol,
            "outcome": attempt.outcome,
            "seconds": round(attempt.seconds, 3),
            "found": bool(attempt.finding),
        }
        for attempt in outcome.report.attempts
    ]
    print_json(
        {
            "ok": outcome.entry is not None,
            "target": outcome.report.target,
            "tried": attempts,
            "manifest": outcome.entry,
            "capabilities": outcome.capabilities,
            "trouble": outcome.trouble,
            "variables": outcome.variables,
            "path": str(agents),
            "added": is_added,
        }
    )
