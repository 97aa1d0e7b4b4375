"""What `a2a-fabric probe` finds: the entry to add, without secrets, and what the agent says that it offers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric import plugins
from a2a_fabric.config import resolve
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.importing.secrets import References, Variable
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.probing import addresses, commands
from a2a_fabric.probing.entry import agent_id_for, entry_of, unique
from a2a_fabric.probing.findings import Finding, Report
from a2a_fabric.runtimes.context import RuntimeContext

_FOR_AN_ADDRESS, _FOR_A_PROGRAM = 5.0, 15.0  # seconds; programs may have to be fetched first
_BEARER = "Bearer "
_ABOUT = 200


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Without an entry nothing was recognised."""

    report: Report
    entry: dict[str, Any] | None = None
    is_known: bool = False  # the entry is among the agents already
    variables: tuple[Variable, ...] = ()  # to be set where the node runs
    capabilities: tuple[Capability, ...] = ()
    trouble: str | None = None  # why it could not be asked what it offers


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An address or a program, and what it is to be given."""

    words: tuple[str, ...]
    headers: dict[str, str] = {}
    env: dict[str, str] = {}
    timeout: float | None = None

    @property
    def is_address(self) -> bool:
        return len(self.words) == 1 and self.words[0].startswith(("http://", "https://"))

    @property
    def seconds(self) -> float:
        return self.timeout or (_FOR_AN_ADDRESS if self.is_address else _FOR_A_PROGRAM)


async def probed(
    target: Target, agent_id: str | None, present: Mapping[str, Manifest], environ: Mapping[str, str]
) -> Outcome:
    """Raises BadInput for an id that is none or taken, ConfigError for a variable that is not set."""
    report = await _looked(target, environ)
    found = report.finding
    if found is None:
        return Outcome(report=report)
    endpoint = {**found.endpoint, **_given(found, target)}
    named, references = _named(found, endpoint, agent_id, present)
    described, trouble = await _described(_manifest(named, found.runtime, endpoint), target.seconds, environ)
    about = found.description or " ".join(described.description.split())[:_ABOUT]
    safe, known = _safe(named, endpoint, references), present.get(named)
    return Outcome(
        report=report,
        entry=entry_of(named, found.runtime, safe, about),
        is_known=known is not None and known.endpoint == safe,
        variables=tuple(references.variables.values()),
        capabilities=described.capabilities,
        trouble=trouble,
    )


async def _looked(target: Target, environ: Mapping[str, str]) -> Report:
    if not target.is_address:
        return await commands.look_at(target.words, environ, resolve(target.env, environ), Path.cwd(), target.seconds)
    http = OutboundClient()
    try:
        return await addresses.look_at(http, target.words[0], resolve(target.headers, environ), target.seconds)
    finally:
        await http.aclose()


def _given(found: Finding, target: Target) -> dict[str, Any]:
    """In the endpoint's words: another node is given its key as such."""
    if not target.is_address:
        return {"env": target.env} if target.env else {}
    if found.runtime != "fabric":
        return {"headers": target.headers} if target.headers else {}
    told = next((value for name, value in target.headers.items() if name.lower() == "authorization"), "")
    return {"psk": told.removeprefix(_BEARER)} if told.startswith(_BEARER) else {}


def _named(
    found: Finding, endpoint: dict[str, Any], wanted: str | None, present: Mapping[str, Manifest]
) -> tuple[str, References]:
    """Its id, and the references that its secrets become; the id that it has already if it is there."""
    name, references = wanted or agent_id_for(found), References()
    known = present.get(name)
    if known is None or known.endpoint == _safe(name, endpoint, references):
        return name, references
    if wanted is not None:
        raise BadInput(f"There is an agent '{wanted}' already, reached in another way: choose another --id")
    return unique(name, present), References()


def _safe(agent_id: str, endpoint: dict[str, Any], references: References) -> dict[str, Any]:
    """The endpoint as it may stand in a file."""

    def value(what: str, name: str, text: str) -> str:
        return text if text.startswith("env:") else references.value(agent_id, what, name, text)

    safe = dict(endpoint)
    for name in ("uri", "openapi"):
        if name in safe:
            safe[name] = references.address(agent_id, safe[name])
    for table in ("headers", "env"):
        if table in safe:
            safe[table] = {name: value(f"{table}.{name}", name, text) for name, text in safe[table].items()}
    if "psk" in safe:
        safe["psk"] = value("psk", "psk_key", safe["psk"])
    if "command" in safe:
        safe["command"] = references.words(agent_id, safe["command"])
    return safe


def _manifest(agent_id: str, runtime: str, endpoint: dict[str, Any]) -> Manifest:
    try:
        return msgspec.convert({"agent_id": agent_id, "runtime": runtime, "endpoint": endpoint}, Manifest)
    except msgspec.ValidationError as exc:
        raise BadInput(f"--id: {exc}") from exc


async def _described(manifest: Manifest, seconds: float, environ: Mapping[str, str]) -> tuple[Manifest, str | None]:
    """With what its runtime finds out by asking, or why it finds out nothing."""
    http = OutboundClient()
    context = RuntimeContext(http=http, base=Path.cwd(), options={"environ": environ})
    reached = msgspec.structs.replace(manifest, endpoint=resolve(manifest.endpoint, environ))
    try:
        runtime = plugins.find("runtimes", manifest.runtime or "")(reached, context)
        try:
            async with asyncio.timeout(2 * seconds):
                return await runtime.describe(), None
        finally:
            await runtime.aclose()
    except FabricError as error:
        return manifest, error.sentence
    except TimeoutError:
        return manifest, "it did not say in time"
    finally:
        await http.aclose()


def pairs_in(given: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` each. Raises BadInput."""
    for each in given:
        if not each.partition("=")[0] or "=" not in each:
            raise BadInput(f"'{each}' is not NAME=VALUE")
    return dict(each.partition("=")[::2] for each in given)
