"""The live runtimes of a node: built on first use, kept while the manifest stays the same, closed when it changes.

When an agent changes or leaves, its old runtime finishes its calls and is then closed.
If a runtime cannot be built, its agent is offline with the reason; others are unaffected.
Modules that a runtime needs are imported in a thread while the first call waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from itertools import compress, islice
from operator import attrgetter

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Emit, Handler, bind_call
from a2a_fabric.core.errors import (
    AgentOffline,
    CallTimeout,
    FabricError,
    NotReached,
    OperatorText,
    UpstreamFailed,
    UpstreamInterrupted,
)
from a2a_fabric.core.forwarding import bind_current_call
from a2a_fabric.core.limits import DEFAULT_SHARE, Share
from a2a_fabric.core.ports import EnforcesDeadline, Runtime
from a2a_fabric.core.recording import current_recording
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import CLOSED_BREAKER, Breaker, BreakerPolicy
from a2a_fabric.core.routing import may_try_next
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.core.tasks import Deadline, cancel_and_wait
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.gate import Gate
from a2a_fabric.registry.registration_policy import read_terms
from a2a_fabric.registry.tool_choice import ToolTranslation

_LOAD_TIMEOUT = 60.0


class RuntimeLoader:
    """`kind_of` names the runtime that an agent needs, `import_kind` imports it; both may raise.

    Built-in kinds are imported one at a time, and so are those of other packages: many libraries import in circles,
    which two threads must not do at once. The two do not wait for each other, because nothing bounds how long the
    module of another package takes.
    """

    def __init__(
        self,
        kind_of: Callable[[Manifest], str],
        import_kind: Callable[[str], object],
        builtin_kinds: Collection[str] = (),
    ) -> None:
        self._kind_of = kind_of
        self._import_kind = import_kind
        self._builtin_kinds = builtin_kinds
        self._loaded_kinds: set[str] = set()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._builtin_lock = asyncio.Lock()
        self._third_party_lock = asyncio.Lock()

    def is_loaded_for(self, manifest: Manifest) -> bool:
        """Whether the runtime is imported. Raises the errors of `kind_of`."""
        return self._kind_of(manifest) in self._loaded_kinds

    async def load_for(self, manifest: Manifest) -> None:
        await self.load(self._kind_of(manifest))

    async def load(self, kind: str) -> None:
        """Raises the errors of `load`, or AgentOffline if it takes too long."""
        if kind in self._loaded_kinds:
            return
        task = self._loading.get(kind)
        if task is None:
            task = self._loading[kind] = asyncio.ensure_future(self._load_in_thread(kind))
            task.add_done_callback(_retrieve_exception)
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT):
                await asyncio.shield(task)
        except TimeoutError as exc:
            raise NotReached(f"the runtime '{kind}' is still being loaded") from exc

    async def aclose(self) -> None:
        await cancel_and_wait(*self._loading.values())

    async def _load_in_thread(self, kind: str) -> None:
        try:
            async with self._builtin_lock if kind in self._builtin_kinds else self._third_party_lock:
                await asyncio.to_thread(self._import_kind, kind)
            self._loaded_kinds.add(kind)
        finally:
            del self._loading[kind]


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception, so that asyncio does not log it if the caller no longer waits."""
    if not task.cancelled():
        task.exception()


_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT = 10.0
_MAX_NAMED = 1000  # agents with an open breaker that are named
_REPEATED_FAILURE = UpstreamFailed("as the calls before")

BuildRuntime = Callable[[Manifest], Runtime]


class LiveRuntime:
    """One agent's runtime behind its gate; calls end at their deadline."""

    def __init__(
        self, manifest: Manifest, runtime: Runtime, gate: Gate, probe_timeout: float = 5.0, *, is_signed: bool = False
    ) -> None:
        self.manifest = manifest
        self.gate = gate
        self._call: Handler = bind_current_call(self) if is_signed else self.__call__
        self.handler = self._call
        self._probe_timeout = probe_timeout
        self.set_runtime(runtime)

    def set_translation(self, translation: ToolTranslation | None) -> None:
        """Which of the agent's own tools a call means, if they are not listed as they are."""
        self.handler = self._call if translation is None else translation.bind(self._call)

    def set_runtime(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._ask = bind_call(runtime)
        self._offers: dict[type, bool] = {}
        self._needs_deadline = not isinstance(runtime, EnforcesDeadline)

    def offers(self, port: type) -> bool:
        """Whether the runtime implements a further protocol. Checking a Protocol is slow, so it is done once."""
        offers = self._offers.get(port)
        if offers is None:
            offers = self._offers[port] = isinstance(self.runtime, port)
        return offers

    async def __call__(self, call: Call, emit: Emit) -> Result:
        gate, caller = self.gate, call.auth.principal_id
        if gate.breaker is CLOSED_BREAKER:
            gate.take(caller)
        else:
            is_alone = not (self.manifest.fallbacks or self.manifest.pool)
            has_alternative = not is_alone and _rules_out_fallback(self.manifest, call)
            gate.enter(caller, has_alternative=has_alternative, is_alone=is_alone)
        interruptions = gate.interruptions
        if (recording := current_recording.get()) is not None:
            recording.enter_runtime()
        try:
            if self._needs_deadline:
                with Deadline(call.target.timeout_ms / 1000):
                    result = await self._ask(call, emit)
            else:
                result = await self._ask(call, emit)
            if gate.breaker is not CLOSED_BREAKER:
                gate.record_outcome()
            return result
        except FabricError as error:
            if isinstance(error, UpstreamInterrupted):  # one death interrupts all calls under way, and counts once
                error.is_inconclusive = gate.interruptions != interruptions
                gate.interruptions += not error.is_inconclusive
            elif had_too_little_time(error, call, self.manifest, self._probe_timeout):
                error.is_inconclusive = True
            gate.record_outcome(error)
            raise
        except asyncio.CancelledError:
            gate.record_no_evidence()
            raise
        finally:
            if gate.idle_event is None:
                gate.give_back(caller)
            else:
                gate.leave(caller)

    async def close(self, drain_timeout: float) -> None:
        """Wait for the calls in flight, then close the runtime; never raises."""
        try:
            async with asyncio.timeout(drain_timeout):
                await self.gate.wait_until_idle()
        except TimeoutError:
            _log.warning("agent %s still has %d calls; closing it", self.manifest.agent_id, self.gate.calls)
        try:
            await asyncio.wait_for(self.runtime.aclose(), _CLOSE_TIMEOUT)
        except Exception:
            _log.exception("closing the runtime of %s failed", self.manifest.agent_id)
        self._call = self.handler = self.runtime  # no longer itself: without a circle it is freed at once


class RuntimePool:
    """Owns all runtimes of a node."""

    def __init__(
        self,
        build: BuildRuntime,
        *,
        loader: RuntimeLoader | None = None,
        breaker: BreakerPolicy,
        calls_per_agent: int,
        share: Share = DEFAULT_SHARE,
        find_counts: Callable[[Manifest], SharedCounts | None] = lambda _: None,
        drain_timeout: float,
        probe_timeout: float = 5.0,
        is_signed: Callable[[Manifest], bool] = lambda _: False,
        special_types: tuple[type, ...] = (),
        on_special: Callable[[], None] = lambda: None,
    ) -> None:
        """`find_counts` says where the calls of an agent are counted that other processes of the node call, too.

        `is_signed` says whether requests to an agent are signed, so that their signer must know the call.

        `special_ids` are the agents whose runtime is of one of `special_types`: a fleet need not be searched.
        `on_special` is called when one more has been built.
        """
        self._on_special = on_special
        self.special_ids: set[str] = set()
        self._special_types = special_types
        self._build = build
        self._is_signed = is_signed
        self._loader = loader
        self._breaker = breaker
        self._calls_per_agent = calls_per_agent
        self._share = share
        self._find_counts = find_counts
        self._drain_timeout = drain_timeout
        self._probe_timeout = probe_timeout
        self._live_runtimes: dict[str, LiveRuntime] = {}
        self._catalog: Catalog | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def set_limits(self, calls_per_agent: int, drain_timeout: float) -> None:
        """For agents with a runtime, and for those that get one."""
        self._calls_per_agent, self._drain_timeout = calls_per_agent, drain_timeout
        for live_runtime in self._live_runtimes.values():
            live_runtime.gate.resize(calls_per_agent)

    def find_handler(self, manifest: Manifest) -> Handler:
        """Raises AgentOffline when the runtime cannot be built; or the handler does, if that takes a while."""
        live_runtime = self._live_runtimes.get(manifest.agent_id)
        if live_runtime is not None:
            return live_runtime.handler
        if self._loader is not None and not self._is_loaded(manifest, self._loader):
            return partial(self._load_and_call, manifest)
        return self._start(manifest).handler

    async def load_runtime(self, manifest: Manifest) -> Runtime:
        """As `runtime_of`, but the import does not block the event loop."""
        if self._loader is not None and manifest.agent_id not in self._live_runtimes:
            await self._load(manifest, self._loader)
        return self.get_runtime(manifest)

    def get_runtime(self, manifest: Manifest) -> Runtime:
        """Raises AgentOffline too."""
        return self.get_live_runtime(manifest).runtime

    def get_live_runtime(self, manifest: Manifest) -> LiveRuntime:
        """Raises AgentOffline too."""
        return self._live_runtimes.get(manifest.agent_id) or self._start(manifest)

    def count_calls(self, agent_id: str) -> int:
        """How many calls the agent is working on for this node."""
        live_runtime = self._live_runtimes.get(agent_id)
        return 0 if live_runtime is None else live_runtime.gate.calls

    def count_breakers(self) -> tuple[dict[str, int], list[str]]:
        """The breakers of live runtimes by state, and the agents whose breaker is not closed."""
        states = [*map(attrgetter("gate.breaker.state"), self._live_runtimes.values())]  # not one by one: may be many
        counts = {state: states.count(state) for state in ("closed", "open", "trial")}
        not_closed = compress(self._live_runtimes, map("closed".__ne__, states))
        return counts, list(islice(not_closed, _MAX_NAMED))

    def find_breaker(self, agent_id: str) -> Breaker | None:
        """None for an agent that was not called yet."""
        live_runtime = self._live_runtimes.get(agent_id)
        return None if live_runtime is None else live_runtime.gate.breaker

    def find_runtime(self, agent_id: str) -> Runtime | None:
        """The live runtime, if there is one; this does not build it."""
        live_runtime = self._live_runtimes.get(agent_id)
        return None if live_runtime is None else live_runtime.runtime

    def record_probe(self, agent_id: str) -> None:
        """The agent has answered a probe."""
        if (live_runtime := self._live_runtimes.get(agent_id)) is not None:
            live_runtime.gate.record_probe()

    def replace(self, agent_id: str, current: Runtime, replacement: Runtime) -> bool:
        """Replace the runtime of an agent by another; False if the agent has no runtime any more."""
        live_runtime = self._live_runtimes.get(agent_id)
        if live_runtime is None or live_runtime.runtime is not current:
            return False
        live_runtime.set_runtime(replacement)
        self._note_special(agent_id, replacement)
        return True

    def _note_special(self, agent_id: str, runtime: Runtime) -> None:
        if isinstance(runtime, self._special_types):
            self.special_ids.add(agent_id)
            self._on_special()
        else:
            self.special_ids.discard(agent_id)

    def _start(self, manifest: Manifest) -> LiveRuntime:
        manifest = self._current_manifest(manifest)
        try:
            runtime = self._build(manifest)
        except Exception as error:
            raise _build_error(manifest, error) from error
        counts = self._find_counts(manifest)
        gate = Gate(manifest.agent_id, self._calls_per_agent, self._breaker, share=self._share, counts=counts)
        live_runtime = self._live_runtimes[manifest.agent_id] = LiveRuntime(
            manifest, runtime, gate, self._probe_timeout, is_signed=self._is_signed(manifest)
        )
        self._note_special(manifest.agent_id, runtime)
        if self._catalog is not None:
            live_runtime.set_translation(self._catalog.translations.get(manifest.agent_id))
        return live_runtime

    async def _load_and_call(self, manifest: Manifest, call: Call, emit: Emit) -> Result:
        """The first call of an agent whose runtime must be imported first, all within the call's deadline."""
        try:
            with Deadline(call.target.timeout_ms / 1000):
                await self.load_runtime(manifest)
                return await self.get_live_runtime(manifest).handler(call, emit)
        except FabricError as error:
            error.is_inconclusive |= had_too_little_time(error, call, manifest, self._probe_timeout)
            raise

    def _is_loaded(self, manifest: Manifest, loader: RuntimeLoader) -> bool:
        try:
            return loader.is_loaded_for(self._current_manifest(manifest))
        except Exception as error:
            raise _build_error(manifest, error) from error

    async def _load(self, manifest: Manifest, loader: RuntimeLoader) -> None:
        try:
            await loader.load_for(self._current_manifest(manifest))
        except Exception as error:
            raise _build_error(manifest, error) from error

    def _current_manifest(self, planned: Manifest) -> Manifest:
        """A call may use a plan older than the catalog, but a runtime that is built here outlives that call."""
        current = planned if self._catalog is None else self._catalog.get(planned.agent_id)
        if current is None:
            raise AgentOffline(f"Agent '{planned.agent_id}' has left", agent_id=planned.agent_id)
        return current

    def on_catalog_changed(self, catalog: Catalog) -> None:
        """Remove the runtimes of agents that were removed or whose endpoint has changed."""
        changed = list(self._live_runtimes) if self._catalog is None else catalog.changes_since(self._catalog)
        self._catalog = catalog
        for agent_id in changed:
            live_runtime = self._live_runtimes.get(agent_id)
            if live_runtime is None:
                continue
            manifest = catalog.get(agent_id)
            if manifest is None or _connection_key(manifest) != _connection_key(live_runtime.manifest):
                self._remove(agent_id)
            else:
                live_runtime.manifest = manifest
                live_runtime.set_translation(catalog.translations.get(agent_id))

    def replace_all(self) -> None:
        """Build each runtime anew when its agent is next called; calls in flight go on."""
        for agent_id in list(self._live_runtimes):
            self._remove(agent_id)

    def _remove(self, agent_id: str) -> None:
        """The runtime is closed after its last call."""
        live_runtime = self._live_runtimes.pop(agent_id)
        self.special_ids.discard(agent_id)
        task = asyncio.get_running_loop().create_task(live_runtime.close(self._drain_timeout))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        if self._loader is not None:
            await self._loader.aclose()
        live_runtimes, self._live_runtimes = list(self._live_runtimes.values()), {}
        await asyncio.gather(
            *(live_runtime.close(0) for live_runtime in live_runtimes), *self._closing, return_exceptions=True
        )


def had_too_little_time(error: FabricError, call: Call, manifest: Manifest, probe_timeout: float) -> bool:
    """Whether the call ended too early to show that the agent is slow.

    That is the case if it had less time than a probe has, and less than the agent's operator allows the capability.
    """
    if not isinstance(error, CallTimeout | NotReached):
        return False
    capability = manifest.find_capability(call.target.capability)
    max_ms = capability.max_timeout_ms if capability is not None else None
    enough = probe_timeout if max_ms is None else min(probe_timeout, max_ms / 1000)
    return call.target.timeout_ms / 1000 < enough


def _rules_out_fallback(manifest: Manifest, call: Call) -> bool:
    """Whether no other agent may be called after this call has run here and failed."""
    capability = manifest.find_capability(call.target.capability)
    return not may_try_next(_REPEATED_FAILURE, capability, has_streamed=False)


def _build_error(manifest: Manifest, error: Exception) -> AgentOffline:
    if isinstance(error, FabricError):
        return AgentOffline(error.full_message, agent_id=manifest.agent_id)
    _log.error("The runtime of %s cannot be built", manifest.agent_id, exc_info=error)  # plug-ins are foreign code
    reason = f"its runtime cannot be built: {type(error).__name__}: {error}"[:500]
    return AgentOffline(OperatorText(reason, "its runtime cannot be built"), agent_id=manifest.agent_id)


def _connection_key(manifest: Manifest) -> tuple[object, ...]:
    """The fields that a runtime is built from; another change of the manifest does not restart it."""
    return manifest.runtime, manifest.endpoint, read_terms(manifest)
