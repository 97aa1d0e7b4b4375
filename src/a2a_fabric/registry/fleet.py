"""The live runtimes behind the catalog's agents: built on first use, kept while their manifest stays the same.

When an agent changes or leaves, its old runtime serves the calls it has and is
closed after the last one. A runtime that cannot be built makes its agent offline
with the reason; it never hides another. What must be imported for it is imported
beside the event loop, while the first call waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.breaker import CLOSED, BreakerPolicy
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import (
    AgentOffline,
    CallTimeout,
    FabricError,
    NotReached,
    OperatorText,
    UpstreamFailed,
    UpstreamInterrupted,
)
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.core.routing import may_move_on
from a2a_fabric.core.shares import SHARE
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.gate import Gate
from a2a_fabric.registry.loading import Loading
from a2a_fabric.registry.terms import terms_of

_log = logging.getLogger(__name__)
_CLOSE_WITHIN = 10.0
_BROKEN = UpstreamFailed("as the calls before")

Build = Callable[[Manifest], Runtime]
Wrap = Callable[[Handler], Handler]


class Berth:
    """One agent's runtime in its wrapping (a deadline), behind its gate."""

    def __init__(
        self, manifest: Manifest, runtime: Runtime, handler: Handler, gate: Gate, probe_timeout: float = 5.0
    ) -> None:
        self.manifest = manifest
        self.runtime = runtime
        self.gate = gate
        self.handler = handler
        self._probe_timeout = probe_timeout

    async def __call__(self, call: Call, emit: Emit) -> Result:
        gate, caller = self.gate, call.auth.principal_id
        if gate.breaker is CLOSED:
            gate.take(caller)
        else:
            is_alone = not (self.manifest.fallbacks or self.manifest.pool)
            has_alternative = not is_alone and _is_lost_once_run(self.manifest, call)
            gate.enter(caller, has_alternative=has_alternative, is_alone=is_alone)
        interruptions = gate.interruptions
        try:
            result = await self.handler(call, emit)
            if gate.breaker is not CLOSED:
                gate.heard()
            return result
        except FabricError as error:
            if isinstance(error, UpstreamInterrupted):  # one death interrupts all calls under way, and counts once
                error.is_inconclusive = gate.interruptions != interruptions
                gate.interruptions += not error.is_inconclusive
            elif is_too_soon(error, call, self.manifest, self._probe_timeout):
                error.is_inconclusive = True
            gate.heard(error)
            raise
        except asyncio.CancelledError:
            gate.heard_nothing()
            raise
        finally:
            if gate.nobody_inside is None:
                gate.give_back(caller)
            else:
                gate.leave(caller)

    async def close(self, patience: float) -> None:
        """Wait for the calls in flight, then close the runtime; never raises."""
        try:
            async with asyncio.timeout(patience):
                await self.gate.idle()
        except TimeoutError:
            _log.warning("agent %s still has %d calls; closing it", self.manifest.agent_id, self.gate.calls)
        try:
            await asyncio.wait_for(self.runtime.aclose(), _CLOSE_WITHIN)
        except Exception:
            _log.exception("closing the runtime of %s failed", self.manifest.agent_id)


class Fleet:
    """Owns all runtimes of a node."""

    def __init__(
        self,
        build: Build,
        wrap: Wrap,
        *,
        loading: Loading | None = None,
        breaker: BreakerPolicy,
        calls_per_agent: int,
        share: float = SHARE,
        patience: float,
        probe_timeout: float = 5.0,
    ) -> None:
        self._build = build
        self._wrap = wrap
        self._loading = loading
        self._breaker = breaker
        self._calls_per_agent = calls_per_agent
        self._share = share
        self._patience = patience
        self._probe_timeout = probe_timeout
        self._berths: dict[str, Berth] = {}
        self._catalog: Catalog | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def handler_of(self, manifest: Manifest) -> Handler:
        """Raises AgentOffline when the runtime cannot be built; or the handler does, if that takes a while."""
        berth = self._berths.get(manifest.agent_id)
        if berth is not None:
            return berth
        if self._loading is not None and not self._is_ready_for(manifest, self._loading):
            return partial(self._arriving, manifest, self._wrap(partial(self._arrive, manifest)))
        return self._moor(manifest)

    async def arrived(self, manifest: Manifest) -> Runtime:
        """As `runtime_of`, for those who can wait: the event loop does not."""
        if self._loading is not None and manifest.agent_id not in self._berths:
            await self._loaded(manifest, self._loading)
        return self.runtime_of(manifest)

    def runtime_of(self, manifest: Manifest) -> Runtime:
        """Raises AgentOffline too."""
        return self.berth_of(manifest).runtime

    def berth_of(self, manifest: Manifest) -> Berth:
        """Raises AgentOffline too."""
        return self._berths.get(manifest.agent_id) or self._moor(manifest)

    def calls_of(self, agent_id: str) -> int:
        """How many calls the agent is working on for this node."""
        berth = self._berths.get(agent_id)
        return 0 if berth is None else berth.gate.calls

    def known(self, agent_id: str) -> Runtime | None:
        """The runtime if there is one; none is built."""
        berth = self._berths.get(agent_id)
        return None if berth is None else berth.runtime

    def was_probed(self, agent_id: str) -> None:
        """The agent has answered a probe."""
        if (berth := self._berths.get(agent_id)) is not None:
            berth.gate.was_probed()

    def settle(self, agent_id: str, known: Runtime, right: Runtime) -> bool:
        """The runtime turned out to be another one, which takes its place; False if it has none any more."""
        berth = self._berths.get(agent_id)
        if berth is None or berth.runtime is not known:
            return False
        berth.runtime, berth.handler = right, self._wrap(right)
        return True

    def _moor(self, manifest: Manifest) -> Berth:
        manifest = self._as_of_now(manifest)
        try:
            runtime = self._build(manifest)
        except Exception as error:
            raise _unbuildable(manifest, error) from error
        gate = Gate(manifest.agent_id, self._calls_per_agent, self._breaker, share=self._share)
        berth = self._berths[manifest.agent_id] = Berth(
            manifest, runtime, self._wrap(runtime), gate, self._probe_timeout
        )
        return berth

    async def _arriving(self, manifest: Manifest, arrive: Handler, call: Call, emit: Emit) -> Result:
        try:
            return await arrive(call, emit)
        except FabricError as error:
            error.is_inconclusive |= is_too_soon(error, call, manifest, self._probe_timeout)
            raise

    async def _arrive(self, manifest: Manifest, call: Call, emit: Emit) -> Result:
        """The first call of an agent whose runtime must be imported first."""
        await self.arrived(manifest)
        return await self.berth_of(manifest)(call, emit)

    def _is_ready_for(self, manifest: Manifest, loading: Loading) -> bool:
        try:
            return loading.is_ready_for(self._as_of_now(manifest))
        except Exception as error:
            raise _unbuildable(manifest, error) from error

    async def _loaded(self, manifest: Manifest, loading: Loading) -> None:
        try:
            await loading.ready_for(self._as_of_now(manifest))
        except Exception as error:
            raise _unbuildable(manifest, error) from error

    def _as_of_now(self, planned: Manifest) -> Manifest:
        """A call may come with a plan older than the catalog; what is built here outlives that call."""
        now = planned if self._catalog is None else self._catalog.get(planned.agent_id)
        if now is None:
            raise AgentOffline(f"Agent '{planned.agent_id}' has left", agent_id=planned.agent_id)
        return now

    def follow(self, catalog: Catalog) -> None:
        """Let go of runtimes whose agent is gone or reached in another way now."""
        self._catalog = catalog
        for agent_id, berth in list(self._berths.items()):
            manifest = catalog.get(agent_id)
            if manifest is None or _reach(manifest) != _reach(berth.manifest):
                del self._berths[agent_id]
                task = asyncio.get_running_loop().create_task(berth.close(self._patience))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
            else:
                berth.manifest = manifest

    async def aclose(self) -> None:
        if self._loading is not None:
            await self._loading.aclose()
        berths, self._berths = list(self._berths.values()), {}
        await asyncio.gather(*(berth.close(0) for berth in berths), *self._leaving, return_exceptions=True)


def is_too_soon(error: FabricError, call: Call, manifest: Manifest, probe_timeout: float) -> bool:
    """Whether the call was given up before anybody could say that the agent is slow.

    That is the case if it had less time than a probe has, and less than the agent's operator allows the capability.
    """
    if not isinstance(error, CallTimeout | NotReached):
        return False
    capability = manifest.capability(call.target.capability)
    most_ms = capability.max_timeout_ms if capability is not None else None
    enough = probe_timeout if most_ms is None else min(probe_timeout, most_ms / 1000)
    return call.target.timeout_ms / 1000 < enough


def _is_lost_once_run(manifest: Manifest, call: Call) -> bool:
    """Whether no other agent would be asked once this call has run here and failed."""
    capability = manifest.capability(call.target.capability)
    return not may_move_on(_BROKEN, capability, has_streamed=False)


def _unbuildable(manifest: Manifest, error: Exception) -> AgentOffline:
    if isinstance(error, FabricError):
        return AgentOffline(error.sentence, agent_id=manifest.agent_id)
    _log.error("the runtime of %s cannot be built", manifest.agent_id, exc_info=error)  # a plug-in is anybody's code
    why = f"its runtime cannot be built: {type(error).__name__}: {error}"[:500]
    return AgentOffline(OperatorText(why, "its runtime cannot be built"), agent_id=manifest.agent_id)


def _reach(manifest: Manifest) -> tuple[object, ...]:
    """What a runtime is built from; a new description alone does not restart a process."""
    return manifest.runtime, manifest.endpoint, terms_of(manifest)
