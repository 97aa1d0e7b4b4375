"""Runtime: an agent at which every principal has a login and a session of its own.

It holds one runtime of the agent's real kind per principal. Each has that principal's token, its own connections
to the agent and its own sessions there, so nothing of one principal reaches another. Runtimes are built on first
use, bounded in number, and closed when they were idle for a while.

What such an agent offers may differ by principal. `describe` tells what callers without a login are shown: what the
operator's service token is shown, or else what the agent shows to strangers. What it offers a principal is learnt with
that principal's own token, and is listed to that principal alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from a2a_fabric.core.agent import LOGIN_CAPABILITY, Manifest, Status, normalize_name
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import AgentBusy, FabricError
from a2a_fabric.core.logins import (
    LOGIN_CONTINUATION,
    BearerSource,
    LoginRequired,
    PersonalListing,
    login_owner_from_call,
)
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.outbound.credentials import BearerClient
from a2a_fabric.outbound.port import OutboundError
from a2a_fabric.protocols.mcp.runtime_ports import (
    EMPTY_LISTING,
    HTTPTunnel,
    OffersPromptsAndResources,
    OffersTunnel,
    PromptResourceListing,
    PromptResourceProvider,
    PromptResourceQuery,
    Tunnel,
)
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.upstream import PROBE_TIMEOUT, error_from_outbound, redact_url
from a2a_fabric.schemas.manifest_check import sanitize_discovered_manifest

_LOGIN_SHARE = 0.9  # of a call's time, in which a person may sign in; the rest is for the agent
_LEARN_TIMEOUT = 30.0
_CONFIRM_TIMEOUT = 5.0  # for what the agent offers, after a login
_LEARN_PAUSES = (1.0, 5.0, 30.0)
_RELEARN_PAUSE = 2.0  # between two questions what a principal is offered, for a server that changes all the time
_MAX_CAPABILITIES = 20_000
_MAX_NAMED = 20
_PROBE_BYTES = 64 * 1024
_LOGIN_WANTED = (401, 403)

_log = logging.getLogger(__name__)

T = TypeVar("T")
BuildRuntime = Callable[[Manifest, RuntimeContext], Runtime]


class Listings(Protocol):
    """What agents offer each principal. See `logins.LoginListings`."""

    def get(self, owner: str, agent_id: str) -> PersonalListing | None: ...
    async def set(self, owner: str, agent_id: str, listing: PersonalListing) -> None: ...


class LoginTokens(Protocol):
    """What this runtime needs of the node's logins. See `logins.Logins`."""

    async def get_token(self, owner: str, agent_id: str) -> str: ...
    async def renew(self, owner: str, agent_id: str, rejected: str) -> str: ...
    async def wait_for_login(self, owner: str, agent_id: str, timeout: float) -> bool: ...
    @property
    def listings(self) -> Listings: ...
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

    async def renew(self, rejected: str | None) -> str:
        return await self._keep_failure(self._logins.renew(self._owner, self._agent_id, rejected or ""))

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
    """The operator's token, which is never used for a call; or none, to see what strangers are shown."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    async def get(self) -> str | None:
        return self._token

    async def renew(self, rejected: str | None) -> str | None:
        return self._token

    def reject(self) -> None:
        """The reply says so already."""


class _PrincipalSession:
    def __init__(self, runtime: Runtime, bearer: _PrincipalBearer) -> None:
        self.runtime = runtime
        self.bearer = bearer
        self.call_count = 0
        self.used_at = time.monotonic()
        self.listing: PersonalListing | None = None  # as this session has learnt it
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
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._relearning: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        # Built now, because that raises BadInput for a bad endpoint.
        self._shared_runtime = self._build_with(
            _ServiceBearer(settings.service_token), context.on_capabilities_changed, lambda: None
        )

    async def __call__(self, call: Call, emit: Emit) -> Result:
        owner = login_owner_from_call(call)
        if call.answers and call.answers.continuation == LOGIN_CONTINUATION:
            call = await self._wait_for_login(owner, call)
        if self._is_login_hint(owner, call.target.capability):
            return await self._confirm_login(owner)
        result = await self._run(owner, lambda runtime: runtime(call, emit))
        if self._logins.listings.get(owner, self.agent_id) is None:
            self.learn(owner)
        return result

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    async def health(self) -> Status:
        """An agent that asks for a login answers."""
        if self._settings.service_token is not None:
            return await self._shared_runtime.health()
        return "online" if await self._probe() < 500 else "degraded"

    async def describe(self) -> Manifest:
        """As callers without a login are shown it. Most agents show them nothing."""
        if self._settings.service_token is None and await self._probe() in _LOGIN_WANTED:
            return self._manifest
        return await self._shared_runtime.describe()

    async def _probe(self) -> int:
        """The status of a request without a token. Raises FabricError."""
        uri = self._settings.uri
        try:
            reply = await self._context.http.request("GET", uri, timeout=PROBE_TIMEOUT, limit=_PROBE_BYTES)
        except OutboundError as exc:
            raise error_from_outbound(exc, PROBE_TIMEOUT, redact_url(uri)) from exc
        return reply.status

    def learn(self, owner: str) -> Awaitable[None]:
        """Ask the agent, in the background, what it offers this principal; to wait for that is up to the caller."""
        task = self._learning.get(owner)
        if task is None:
            task = self._learning[owner] = self._spawn(self._learn(owner))
            task.add_done_callback(lambda _: self._learning.pop(owner, None))
        return asyncio.shield(task)

    def find_prompts_and_resources(self, owner: str) -> PromptResourceProvider | None:
        """Those that this principal is offered; None if it is not signed in."""
        if not isinstance(self._shared_runtime, OffersPromptsAndResources):
            return None
        is_known = self._logins.listings.get(owner, self.agent_id) is not None
        return _PersonalPromptsAndResources(self, owner) if is_known else None

    def find_tunnel(self, owner: str) -> Tunnel | None:
        """To the agent as this principal; None if it is not signed in. Raises AgentBusy."""
        if self._logins.listings.get(owner, self.agent_id) is None:
            return None
        session = self._find_session(owner)
        if not isinstance(session.runtime, OffersTunnel):
            return None
        tunnel = session.runtime.tunnel
        if tunnel is None:
            return None
        # Streams of messages send the token by themselves.
        is_http = isinstance(tunnel, HTTPTunnel)
        return msgspec.structs.replace(tunnel, owner=owner, **({"bearer": session.bearer} if is_http else {}))

    async def aclose(self) -> None:
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        await cancel_and_wait(*self._tasks)
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.runtime.aclose()
        await self._shared_runtime.aclose()

    def close_session(self, owner: str) -> None:
        """The principal has signed out, or in again: what its session still knows is no longer right."""
        session = self._sessions.pop(owner, None)
        if session is not None:
            self._close_in_background(session)

    async def ask(self, owner: str, ask: Callable[[PromptResourceProvider], Awaitable[T]]) -> T:
        """Ask for a prompt or a resource as this principal. Raises FabricError."""

        def work(runtime: Runtime) -> Awaitable[T]:
            assert isinstance(runtime, OffersPromptsAndResources)  # noqa: S101  # as the shared one is
            return ask(runtime.prompts_and_resources)

        return await self._run(owner, work)

    def get_items(self, owner: str) -> PromptResourceListing:
        listing = self._logins.listings.get(owner, self.agent_id)
        if listing is None:
            return EMPTY_LISTING
        return PromptResourceListing(prompts=listing.prompts, resources=listing.resources, templates=listing.templates)

    async def _run(self, owner: str, work: Callable[[Runtime], Awaitable[T]]) -> T:
        """Let the principal's own runtime do the work. Raises LoginRequired, and what the work raises."""
        session = self._find_session(owner)
        session.begin_call()
        try:
            await session.bearer.get()
            return await work(session.runtime)
        except FabricError as exc:
            if session.bearer.failure is not None and exc is not session.bearer.failure:
                raise session.bearer.failure from exc
            raise
        finally:
            session.end_call()
            self._schedule_sweep()

    def _is_login_hint(self, owner: str, capability: str) -> bool:
        """Whether the call only means to sign in, and not a tool of this name."""
        if normalize_name(capability) != LOGIN_CAPABILITY.name:
            return False
        listing = self._logins.listings.get(owner, self.agent_id) or PersonalListing()
        offered = (*self._manifest.capabilities, *listing.capabilities)
        return not any(normalize_name(each.name) == LOGIN_CAPABILITY.name for each in offered)

    async def _confirm_login(self, owner: str) -> Result:
        """Raises LoginRequired."""
        await self._logins.get_token(owner, self.agent_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONFIRM_TIMEOUT):
                await self.learn(owner)
        listing = self._logins.listings.get(owner, self.agent_id) or PersonalListing()
        names = [capability.name for capability in listing.capabilities]
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        offered = f" It offers you: {', '.join(names[:_MAX_NAMED])}{more}." if names else ""
        return Result(data={"answer": f"You are signed in to '{self.agent_id}'.{offered}"})

    async def _wait_for_login(self, owner: str, call: Call) -> Call:
        """The call itself, once the person has signed in. Raises LoginRequired."""
        agent_id = self.agent_id
        answers = call.answers.answers.values() if call.answers else ()
        if any(answer.action != "accept" for answer in answers):
            raise LoginRequired(agent_id, f"The login at agent '{agent_id}' was declined")
        timeout = _LOGIN_SHARE * call.target.timeout_ms / 1000
        if not await self._logins.wait_for_login(owner, agent_id, timeout):
            why = f"There was no login at agent '{agent_id}' within {timeout:g} s"
            is_job = call.answers and call.answers.is_trusted is True  # it can ask again, with a new page
            raise self._logins.make_required(owner, agent_id, why) if is_job else LoginRequired(agent_id, why)
        return msgspec.structs.replace(call, answers=msgspec.UNSET)

    def _find_session(self, owner: str) -> _PrincipalSession:
        """Raises AgentBusy if as many principals as allowed are in the middle of a call."""
        session = self._sessions.get(owner)
        if session is None:
            if len(self._sessions) >= self._settings.max_sessions:
                self._evict()
            bearer = _PrincipalBearer(self._logins, owner, self.agent_id)
            runtime = self._build_with(bearer, lambda _: self._relearn(owner), lambda: self._relearn(owner))
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

    def _build_with(
        self, bearer: BearerSource, on_changed: Callable[[str], None], on_items_changed: Callable[[], None]
    ) -> Runtime:
        context = msgspec.structs.replace(
            self._context,
            http=BearerClient(self._context.http, bearer, self._settings.uri),
            on_capabilities_changed=on_changed,
            on_prompts_resources_changed=on_items_changed,
        )
        return self._build(self._manifest, context)

    def _relearn(self, owner: str) -> None:
        """The agent says that it offers the principal something else now."""
        if owner not in self._relearning and not self._is_closed:
            self._relearning.add(owner)
            self._spawn(self._relearn_later(owner))

    async def _relearn_later(self, owner: str) -> None:
        """Changes in a short time cost one question."""
        try:
            session = self._sessions.get(owner)
            await asyncio.sleep(0 if session is None or session.listing is None else _RELEARN_PAUSE)
        finally:
            self._relearning.discard(owner)
        if owner in self._sessions:
            await self.learn(owner)

    async def _learn(self, owner: str) -> None:
        """Tried again a few times: without a list, the principal finds nothing to call."""
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

    async def _learn_once(self, owner: str) -> None:
        session = self._find_session(owner)
        async with asyncio.timeout(_LEARN_TIMEOUT):  # not counted as a call: a caller may evict the session meanwhile
            await session.bearer.get()
            described = await sanitize_discovered_manifest(await session.runtime.describe())
            items = EMPTY_LISTING
            if isinstance(session.runtime, OffersPromptsAndResources):
                items = await session.runtime.prompts_and_resources.load()
            session.listing = PersonalListing(
                capabilities=described.capabilities[:_MAX_CAPABILITIES],
                prompts=items.prompts,
                resources=items.resources,
                templates=items.templates,
            )
            if self._sessions.get(owner) is session:  # the principal has not signed out, or in as another one
                await self._logins.listings.set(owner, self.agent_id, session.listing)

    def _close_in_background(self, session: _PrincipalSession) -> None:
        self._spawn(session.close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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


class _PersonalPromptsAndResources:
    """The prompts and resources that an agent offers one principal."""

    def __init__(self, runtime: PerPrincipalRuntime, owner: str) -> None:
        self._runtime = runtime
        self._owner = owner

    @property
    def listing(self) -> PromptResourceListing:
        return self._runtime.get_items(self._owner)

    async def load(self) -> PromptResourceListing:
        await self._runtime.learn(self._owner)
        return self.listing

    async def ask(self, query: PromptResourceQuery, emit: Emit | None = None) -> dict[str, Any]:
        return await self._runtime.ask(self._owner, lambda provider: provider.ask(query, emit))

    async def subscribe(
        self, uri: str, on_change: Callable[[], None], on_lost: Callable[[], None], start_timeout: float
    ) -> Callable[[], None]:
        return await self._runtime.ask(
            self._owner, lambda provider: provider.subscribe(uri, on_change, on_lost, start_timeout)
        )
