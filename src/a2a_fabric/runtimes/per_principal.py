"""Runtime: an agent at which every principal has a login and a session of its own.

It holds one runtime of the agent's real kind per principal. Each has that principal's token, its own connections
to the agent and its own sessions there, so nothing of one principal reaches another. Runtimes are built on first
use, bounded in number, and closed when they were idle for a while.

What such an agent offers may differ by principal. The catalog, which all callers see, has only what every principal
that is signed in was offered alike; or what the operator's service token is shown."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import AgentBusy, FabricError
from a2a_fabric.core.logins import LOGIN_CONTINUATION, LoginRequired, login_owner_from_call
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.outbound.bearer import BearerClient, BearerSource
from a2a_fabric.outbound.port import OutboundError
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest
from a2a_fabric.runtimes.upstream import PROBE_TIMEOUT, error_from_outbound, redact_url

_LOGIN_SHARE = 0.9  # of a call's time, in which a person may sign in; the rest is for the agent
_LEARN_TIMEOUT = 30.0
_LEARN_PAUSES = (1.0, 5.0, 30.0)
_MAX_CAPABILITIES = 20_000
_PROBE_BYTES = 64 * 1024

_log = logging.getLogger(__name__)

BuildRuntime = Callable[[Manifest, RuntimeContext], Runtime]


class LoginTokens(Protocol):
    """What this runtime needs of the node's logins. See `logins.Logins`."""

    async def get_token(self, owner: str, agent_id: str) -> str: ...
    async def renew(self, owner: str, agent_id: str, rejected: str) -> str: ...
    async def wait_for_login(self, owner: str, agent_id: str, timeout: float) -> bool: ...
    async def set_listing(self, owner: str, agent_id: str, listing: bytes) -> None: ...
    async def read_listings(self, agent_id: str) -> Sequence[bytes]: ...
    def make_required(self, owner: str, agent_id: str, why: str = "") -> LoginRequired: ...


class PerPrincipalSettings(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    service_token: str | None = None
    max_sessions: int = 100
    idle_timeout: float = 300.0


class _PrincipalBearer:
    """The token of one principal. `failure` is why there is none any more, until there is one again."""

    def __init__(self, logins: LoginTokens, owner: str, agent_id: str) -> None:
        self._logins = logins
        self._owner = owner
        self._agent_id = agent_id
        self.failure: FabricError | None = None

    async def get(self) -> str:
        return await self._keep_failure(self._logins.get_token(self._owner, self._agent_id))

    async def renew(self, rejected: str) -> str:
        return await self._keep_failure(self._logins.renew(self._owner, self._agent_id, rejected))

    def reject(self) -> None:
        why = f"Agent '{self._agent_id}' rejects your login, though it is new: sign in with an account that it accepts"
        self.failure = self._logins.make_required(self._owner, self._agent_id, why)

    async def _keep_failure(self, request: Coroutine[Any, Any, str]) -> str:
        try:
            token = await request
        except FabricError as exc:
            self.failure = exc
            raise
        self.failure = None
        return token


class _ServiceBearer:
    """The operator's token, which is never used for a call."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def get(self) -> str:
        return self._token

    async def renew(self, rejected: str) -> str:
        return self._token

    def reject(self) -> None:
        """The reply says so already."""


class _PrincipalSession:
    def __init__(self, runtime: Runtime, bearer: _PrincipalBearer) -> None:
        self.runtime = runtime
        self.bearer = bearer
        self.call_count = 0
        self.used_at = time.monotonic()
        self.has_learned = False
        self._is_free = asyncio.Event()
        self._is_free.set()

    def begin_call(self) -> None:
        self.call_count += 1
        self._is_free.clear()

    def end_call(self) -> None:
        self.call_count -= 1
        self.used_at = time.monotonic()
        if not self.call_count:
            self._is_free.set()

    async def close(self) -> None:
        """Close, once its calls have ended; at once if this is cancelled."""
        try:
            await self._is_free.wait()
        finally:
            await self.runtime.aclose()


class PerPrincipalRuntime:
    """`build` builds a runtime of the agent's real kind; `manifest` has no `auth` any more."""

    def __init__(
        self,
        manifest: Manifest,
        context: RuntimeContext,
        build: BuildRuntime,
        logins: LoginTokens,
        settings: PerPrincipalSettings,
    ) -> None:
        self.agent_id = manifest.agent_id
        self._manifest = manifest
        self._context = context
        self._build = build
        self._logins = logins
        self._settings = settings
        self._sessions: OrderedDict[str, _PrincipalSession] = OrderedDict()  # the least recently used one first
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        token = settings.service_token
        # Built in any case, because that raises BadInput now for a bad endpoint.
        self._first_runtime = self._build_with(_ServiceBearer(token or ""), context.on_capabilities_changed)
        self._service_runtime: Runtime | None = None if token is None else self._first_runtime

    async def __call__(self, call: Call, emit: Emit) -> Result:
        owner = login_owner_from_call(call)
        if call.answers and call.answers.continuation == LOGIN_CONTINUATION:
            call = await self._wait_for_login(owner, call)
        session = self._find_session(owner)
        session.begin_call()
        try:
            await session.bearer.get()
            result = await session.runtime(call, emit)
        except FabricError as exc:
            if session.bearer.failure is not None and exc is not session.bearer.failure:
                raise session.bearer.failure from exc
            raise
        finally:
            session.end_call()
            self._schedule_sweep()
        if not session.has_learned:
            self.learn(owner)
        return result

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    async def health(self) -> Status:
        """An agent that asks for a login answers."""
        if self._service_runtime is not None:
            return await self._service_runtime.health()
        upstream = redact_url(self._settings.uri)
        try:
            reply = await self._context.http.request(
                "GET", self._settings.uri, timeout=PROBE_TIMEOUT, limit=_PROBE_BYTES
            )
        except OutboundError as exc:
            raise error_from_outbound(exc, PROBE_TIMEOUT, upstream) from exc
        return "online" if reply.status < 500 else "degraded"

    async def describe(self) -> Manifest:
        if self._service_runtime is not None:
            return await self._service_runtime.describe()
        lists = [_decode_listing(each) for each in await self._logins.read_listings(self.agent_id)]
        return complete_manifest(
            self._manifest,
            msgspec.structs.replace(self._manifest, capabilities=tuple(_find_common(lists))),
        )

    def learn(self, owner: str) -> None:
        """Ask the agent, in the background, what it offers this principal. Called after a login, too."""
        if self._is_closed or self._service_runtime is not None:
            return
        task = asyncio.ensure_future(self._learn(owner))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        await cancel_and_wait(*self._tasks)
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.runtime.aclose()
        await self._first_runtime.aclose()

    def close_session(self, owner: str) -> None:
        """The principal has signed out, or in again: what its session still knows is no longer right."""
        session = self._sessions.pop(owner, None)
        if session is not None:
            self._close_in_background(session)

    async def _wait_for_login(self, owner: str, call: Call) -> Call:
        """The call itself, once the person has signed in. Raises LoginRequired."""
        agent_id = self.agent_id
        answers = call.answers.answers.values() if call.answers else ()
        if any(answer.action != "accept" for answer in answers):
            raise LoginRequired(agent_id, f"The login at agent '{agent_id}' was declined")
        timeout = _LOGIN_SHARE * call.target.timeout_ms / 1000
        if not await self._logins.wait_for_login(owner, agent_id, timeout):
            raise LoginRequired(agent_id, f"There was no login at agent '{agent_id}' within {timeout:g} s")
        return msgspec.structs.replace(call, answers=msgspec.UNSET)

    def _find_session(self, owner: str) -> _PrincipalSession:
        """Raises AgentBusy if as many principals as allowed are in the middle of a call."""
        session = self._sessions.get(owner)
        if session is None:
            if len(self._sessions) >= self._settings.max_sessions:
                self._evict()
            bearer = _PrincipalBearer(self._logins, owner, self.agent_id)
            runtime = self._build_with(bearer, lambda _: self.learn(owner))
            session = self._sessions[owner] = _PrincipalSession(runtime, bearer)
        self._sessions.move_to_end(owner)
        return session

    def _evict(self) -> None:
        owner = next((owner for owner, session in self._sessions.items() if not session.call_count), None)
        if owner is None:
            raise AgentBusy(
                f"Agent '{self.agent_id}' serves as many callers with logins of their own as it may "
                f"({self._settings.max_sessions})"
            )
        self._close_in_background(self._sessions.pop(owner))

    def _build_with(self, bearer: BearerSource, on_changed: Callable[[str], None]) -> Runtime:
        context = replace(
            self._context,
            http=BearerClient(self._context.http, bearer, self._settings.uri),
            bearer=bearer,
            on_capabilities_changed=on_changed,
            on_prompts_resources_changed=lambda: None,
        )
        return self._build(self._manifest, context)

    async def _learn(self, owner: str) -> None:
        """Tried again a few times: without a list, no caller finds a capability to call."""
        for pause in (*_LEARN_PAUSES, None):
            try:
                await self._learn_once(owner)
                break
            except (FabricError, TimeoutError) as exc:
                reason = str(exc) or type(exc).__name__
                _log.info("%s: what it offers one of its callers is not known: %s", self.agent_id, reason)
                if pause is None or isinstance(exc, LoginRequired):
                    return
                await asyncio.sleep(pause)
        self._schedule_sweep()
        self._context.on_capabilities_changed(self.agent_id)

    async def _learn_once(self, owner: str) -> None:
        session = self._find_session(owner)
        async with asyncio.timeout(_LEARN_TIMEOUT):  # not counted as a call: a caller may evict the session meanwhile
            await session.bearer.get()
            described = await session.runtime.describe()
            listing = msgspec.json.encode(described.capabilities[:_MAX_CAPABILITIES])
            await self._logins.set_listing(owner, self.agent_id, listing)
        session.has_learned = True

    def _close_in_background(self, session: _PrincipalSession) -> None:
        task = asyncio.ensure_future(session.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _schedule_sweep(self) -> None:
        if self._sweep is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(max(0.05, self._settings.idle_timeout / 4), self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        too_old = time.monotonic() - self._settings.idle_timeout
        for owner, session in list(self._sessions.items()):
            if not session.call_count and session.used_at <= too_old:
                self._close_in_background(self._sessions.pop(owner))
        if self._sessions:
            self._schedule_sweep()


def _decode_listing(listing: bytes) -> list[Capability]:
    try:
        return msgspec.json.decode(listing, type=list[Capability])
    except msgspec.DecodeError:  # written by another version
        return []


def _find_common(lists: Sequence[list[Capability]]) -> list[Capability]:
    """What all lists have, in the order of the first; of a capability with different schemas, no list tells."""
    if not lists:
        return []
    others = [{each.name: each for each in capabilities} for capabilities in lists[1:]]
    return [each for each in lists[0] if all(other.get(each.name) == each for other in others)]
