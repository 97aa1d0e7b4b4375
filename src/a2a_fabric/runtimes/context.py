"""What every runtime is built from: the objects that all runtimes of a node share, and its agent's manifest.

A runtime decodes the manifest's endpoint into its own struct. It completes the manifest with
what the agent publishes about itself; what the operator wrote by hand always wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.callbacks import Callbacks
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.forwarding import CallSigner
from a2a_fabric.core.threads import WorkerThreads
from a2a_fabric.outbound.client_tls import ClientTLSFiles
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.tools.spec import Toolbox

E = TypeVar("E", bound=msgspec.Struct)


def _ignore_agent(agent_id: str) -> None:
    """Nothing in this process wants to know."""


def _ignore() -> None:
    """Nothing in this process wants to know."""


class RuntimeContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all runtimes of a node share. The node owns and closes it; a runtime never does."""

    http: HTTPClient
    base: Path  # relative paths in a manifest start here
    guard: Guard | None = None  # of `http`, for runtimes that connect by themselves; None allows every address
    tls: ClientTLSFiles | None = None  # of `http`, for runtimes that connect by themselves
    reply_bytes: int = 16 * 1024 * 1024
    overlay: Path | None = None  # personal knowledge, a folder for each agent
    environ: Mapping[str, str] = {}  # programs inherit a few of these, never all
    mounted: Mapping[str, object] = {}  # Python agents of this process, by agent_id
    threads: WorkerThreads | None = None  # where Python agents run functions that are not async
    toolbox: Toolbox | None = None  # what built-in tools work with
    signer: CallSigner | None = None  # signs what is sent to the agent, where the operator asked for it
    callbacks: Callbacks = msgspec.field(default_factory=Callbacks)  # addresses at which agents can report back, if any
    owner_tag: str = ""  # the end of ids that must come back to this process, if the node has several
    on_capabilities_changed: Callable[[str], None] = _ignore_agent  # an agent, by id, reports new capabilities
    on_prompts_resources_changed: Callable[[], None] = _ignore


def decode_endpoint(manifest: Manifest, kind: type[E]) -> E:
    """The manifest's endpoint as the runtime's own struct; raises BadInput naming agent and field."""
    try:
        return msgspec.convert(manifest.endpoint, kind)
    except msgspec.ValidationError as exc:
        raise bad_endpoint(manifest.agent_id, str(exc)) from exc


def bad_endpoint(agent_id: str, reason: str) -> BadInput:
    return BadInput(f"Agent '{agent_id}' has a bad endpoint: {reason}", agent_id=agent_id)


def complete_manifest(manifest: Manifest, published: Manifest) -> Manifest:
    return replace(
        manifest,
        display_name=manifest.display_name or published.display_name,
        description=manifest.description or published.description,
        version=manifest.version or published.version,
        tags=manifest.tags or published.tags,
        capabilities=_complete_capabilities(manifest.capabilities, published.capabilities),
    )


def _complete_capabilities(declared: Sequence[Capability], published: Sequence[Capability]) -> tuple[Capability, ...]:
    """Those declared, their gaps filled; all that are published if none is declared."""
    by_name = {normalize_name(capability.name): capability for capability in published}
    if any(each.default for each in declared):
        by_name = {name: replace(each, default=False) for name, each in by_name.items()}
    return tuple(_complete_capability(each, by_name.get(normalize_name(each.name))) for each in declared) or tuple(
        published
    )


def _complete_capability(declared: Capability, published: Capability | None) -> Capability:
    if published is None:
        return declared
    return replace(
        declared,
        description=declared.description or published.description,
        input_schema=declared.input_schema if declared.input_schema is not None else published.input_schema,
        output_schema=declared.output_schema if declared.output_schema is not None else published.output_schema,
        streaming=declared.streaming or published.streaming,
        idempotent=declared.idempotent if declared.idempotent is not None else published.idempotent,
        max_timeout_ms=declared.max_timeout_ms or published.max_timeout_ms,
        default=declared.default or published.default,
        metadata=declared.metadata or published.metadata,
    )
