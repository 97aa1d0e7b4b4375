"""Where runtimes are built: of which kind, what they may reach, and what an agent is asked if nobody says which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import msgspec

from a2a_fabric import plugins
from a2a_fabric.config import resolve
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentOffline, ConfigError, FabricError, nearest
from a2a_fabric.core.listing import AGENT
from a2a_fabric.core.pipeline import Handler
from a2a_fabric.core.ports import Runtime
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.reach import Reach
from a2a_fabric.probing.addresses import guess
from a2a_fabric.probing.findings import Finding
from a2a_fabric.probing.guessing import GuessingRuntime, may_be_anything
from a2a_fabric.registry.loading import Loading
from a2a_fabric.registry.terms import terms_of
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.steps.deadline import deadline

_GUESS_SECONDS = 3.0  # for each question to an agent of which nobody says what it is

DEFAULT_KIND = "http"  # of an address where nothing else is recognised

Settled = Callable[[str, Runtime, Runtime, str | None], bool]


class Shipyard:
    """`context` is for agents that are declared; those that joined at run time get their own, judged by `reach`.

    They may only turn out to be of one of `kinds`. `settled` hears what an agent has turned out to be.
    """

    def __init__(self, kinds: Sequence[str], context: RuntimeContext, reach: Reach, settled: Settled) -> None:
        self.loading = Loading(runtime_kind, partial(plugins.find, "runtimes"))
        self._kinds = kinds
        self._context = context
        self._reach = reach
        self._settled = settled
        self._clients = {guard: OutboundClient(guard) for guard in (reach.near, reach.far)}
        self._guarded = {guard: _judged(context, guard, http) for guard, http in self._clients.items()}

    async def aclose(self) -> None:
        for http in self._clients.values():
            await http.aclose()

    def build(self, manifest: Manifest) -> Runtime:
        """Raises FabricError."""
        terms = terms_of(manifest)
        context = self._context if terms is None else self._guarded[self._reach.guard_for(terms.trust)]
        reached = msgspec.structs.replace(manifest, endpoint=resolve(manifest.endpoint, context.options["environ"]))
        runtime = _built(reached, context)
        if not may_be_anything(manifest):
            return runtime
        kinds = self._kinds if terms is not None else None
        return GuessingRuntime(
            reached,
            runtime,
            partial(self._guessed, reached, context, kinds),
            partial(_built, context=context),
            self._settled,
        )

    @staticmethod
    def in_time(runtime: Handler) -> Handler:
        return runtime if getattr(runtime, "keeps_time", False) else deadline(runtime)

    async def _guessed(
        self, manifest: Manifest, context: RuntimeContext, kinds: Sequence[str] | None
    ) -> Finding | None:  # fmt: skip
        """What speaks at its address, if it is of a kind that may be used. Raises AgentOffline, or Unanswered."""
        endpoint = manifest.endpoint
        found = await guess(context.http, endpoint["uri"], endpoint.get("headers", {}), _GUESS_SECONDS)
        if found is None or (kinds is not None and found.runtime not in kinds):
            return None
        with suppress(FabricError):  # whoever builds it hears of it
            await self.loading.ready(found.runtime)
        return found


def _judged(context: RuntimeContext, guard: Guard, http: OutboundClient) -> RuntimeContext:
    """The same for agents whose addresses are judged at every connection."""
    return replace(context, http=http, guard=guard)


def _built(manifest: Manifest, context: RuntimeContext) -> Runtime:
    """Raises FabricError."""
    runtime: Runtime = plugins.find("runtimes", runtime_kind(manifest))(manifest, context)
    return runtime


def runtime_kind(manifest: Manifest) -> str:
    """The declared runtime, or the one that the endpoint speaks for. Raises AgentOffline if it speaks for none."""
    if manifest.runtime:
        return manifest.runtime
    if manifest.implied_runtime is not None:
        return manifest.implied_runtime
    uri = str(manifest.endpoint.get("uri", ""))
    if uri.startswith(("http://", "https://")) and AGENT in manifest.endpoint:  # one agent of another node
        return "fabric"
    if uri.startswith(("http://", "https://")) or "openapi" in manifest.endpoint:
        return DEFAULT_KIND
    if uri:
        raise AgentOffline(
            f"agent '{manifest.agent_id}': '{uri[:200]}' is no address such as http://127.0.0.1:9001; "
            "for anything else name a `runtime`"
        )
    raise AgentOffline(f"agent '{manifest.agent_id}': the endpoint needs a uri or a command")


def reached_by(manifest: Manifest) -> str:
    """The same under the name that stands in the table of runtimes. Raises AgentOffline too, ConfigError if in none."""
    kind = plugins.canonical(runtime_kind(manifest))
    if not plugins.is_there("runtimes", kind):
        raise ConfigError(f"there is no runtime '{kind}'{nearest(kind, plugins.kinds('runtimes'))}")
    return kind
