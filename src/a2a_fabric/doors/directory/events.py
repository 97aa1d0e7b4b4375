"""`a2a/events`: changes of the directory and of the caller's own tasks, as they happen.

Agent events are kept in one bounded buffer for all subscribers. Each subscriber reads at its own pace and is told if
it missed some. A caller sees events of agents that it may see, and of its own tasks at any door and node."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterator
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Health, Manifest, Status, normalize_name
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import JobNotFound, StoreError
from a2a_fabric.core.job import JobState, JobSummary, translate_state
from a2a_fabric.core.node_limits import build_limit
from a2a_fabric.core.policy import narrow_manifest
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.agents import AgentDirectory, to_agent_id
from a2a_fabric.doors.directory.jsonrpc import DirectoryRequestContext, DirectoryStream, DirectoryStreamEvent
from a2a_fabric.doors.directory.task_chains import DirectoryTaskRecord, record_from_job
from a2a_fabric.jobs.jobs import Jobs

_ACTIVE_STATES: tuple[JobState, ...] = ("queued", "running", "input_required")
_NEWEST_LIMIT = 100
_ACTIVE_LIMIT = 1000


class SharedJobQueries:
    """One query of a caller's jobs serves all its subscribers that ask within `max_age` seconds."""

    def __init__(self, jobs: Jobs, max_age: float) -> None:
        self._jobs = jobs
        self._max_age = max_age
        self._latest: dict[str, tuple[float, asyncio.Task[dict[str, JobSummary]]]] = {}

    async def load_jobs(self, principal: Principal) -> dict[str, JobSummary]:
        """The newest jobs and all active ones, the oldest first. Raises StoreError."""
        now, owner = asyncio.get_running_loop().time(), owner_from_principal(principal)
        self._latest = {key: query for key, query in self._latest.items() if now - query[0] < self._max_age}
        if owner not in self._latest:
            query = asyncio.create_task(self._query_jobs(principal))
            query.add_done_callback(lambda done: done.cancelled() or done.exception())  # all subscribers may have left
            self._latest[owner] = (now, query)
        return await asyncio.shield(self._latest[owner][1])

    async def _query_jobs(self, principal: Principal) -> dict[str, JobSummary]:
        newest = (await self._jobs.list(principal, limit=_NEWEST_LIMIT)).jobs
        active = (await self._jobs.list(principal, states=_ACTIVE_STATES, limit=_ACTIVE_LIMIT)).jobs
        return {job.job_id: job for job in (*reversed(newest), *reversed(active))}


def _list_transitions(previous_state: JobState | None, job: JobSummary) -> list[JobSummary]:
    """The states from the last poll to the present one, with those that the job passed through in between."""
    if previous_state == job.state:
        return []
    passed_states: list[JobState] = ["queued"] if previous_state is None and job.state != "queued" else []
    if previous_state in (None, "queued") and job.attempt > 0 and job.state != "running":
        passed_states.append("running")
    return [*(replace(job, state=state) for state in passed_states), job]


class TaskChangePoller:
    """The first poll returns the active tasks; each further one returns what changed."""

    def __init__(self, jobs: Jobs, job_queries: SharedJobQueries, principal: Principal, task_id: str | None) -> None:
        self._jobs = jobs
        self._job_queries = job_queries
        self._principal = principal
        self._task_id = task_id
        self._last_states: dict[str, JobState] | None = None

    async def poll_changes(self) -> list[dict[str, Any]]:
        """Empty while the store is unavailable."""
        try:
            jobs = dict(await self._job_queries.load_jobs(self._principal))
        except StoreError:
            return []
        previous_states = self._last_states
        if previous_states is None:
            self._last_states = {job.job_id: job.state for job in jobs.values()}
            return [
                body for job in jobs.values() if not job.has_ended and (body := self._render_change(job)) is not None
            ]
        for job_id, state in previous_states.items():
            if (
                state in _ACTIVE_STATES
                and job_id not in jobs
                and (job := await self._load_missing_job(job_id)) is not None
            ):
                jobs[job_id] = job
        self._last_states = {job.job_id: job.state for job in jobs.values()}
        changed = [each for job in jobs.values() for each in _list_transitions(previous_states.get(job.job_id), job)]
        return [body for job in changed if (body := self._render_change(job)) is not None]

    async def _load_missing_job(self, job_id: str) -> JobSummary | None:
        """Load a job that has ended and is no longer among the newest."""
        try:
            return await self._jobs.get(self._principal, job_id)
        except (JobNotFound, StoreError):
            return None

    def _render_change(self, job: JobSummary) -> dict[str, Any] | None:
        record = record_from_job(job) or DirectoryTaskRecord(task_id=job.job_id)
        if self._task_id is not None and record.task_id != self._task_id:
            return None
        is_last = record.hop == record.count - 1
        status = translate_state(job.state, "directory") if is_last or job.state != "completed" else "running"
        body: dict[str, Any] = {
            "type": f"task.{status}",
            "taskId": record.task_id,
            "status": status,
            "agentId": job.agent_id,
            "action": job.capability,
        }
        return body if record.count == 1 else {**body, "hop": record.hop + 1}


_MAX_EVENTS = 1000
_MAX_EVENT_BYTES = 8 << 20
_POLL_INTERVAL = 0.5  # seconds; tasks are polled, because any door and any node may change them


class CatalogView(Protocol):
    def get(self, agent_id: str, /) -> Manifest | None: ...
    def changes_since(self, previous: Any, /) -> Collection[str]: ...


DirectoryEventKind = Literal["agent.registered", "agent.updated", "agent.unregistered", "agent.health"]


class DirectoryEventsParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Filters. `types` are names of events or their first words: `agent.health`, `agent`. An omitted filter is off."""

    types: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    agent_id: str | None = None
    task_id: str | None = None
    after: int | None = None

    def includes_type(self, name: str) -> bool:
        return not self.types or any(name == each or name.startswith(f"{each}.") for each in self.types)

    @property
    def includes_tasks(self) -> bool:
        return not self.types or any(each.partition(".")[0] == "task" for each in self.types)

    def matches_agent(self, manifest: Manifest) -> bool:
        if self.task_id is not None or (self.agent_id and to_agent_id(self.agent_id) != manifest.agent_id):
            return False
        offered = {normalize_name(capability.name) for capability in manifest.capabilities}
        return not self.capabilities or not offered.isdisjoint(map(normalize_name, self.capabilities))


class DirectoryEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    number: int
    kind: DirectoryEventKind
    manifest: Manifest
    status: Status
    size: int


class DirectoryEvents:
    """The events of one node. Numbers keep growing over restarts, so a returning subscriber can tell what it missed."""

    def __init__(self, context: DoorContext, directory: AgentDirectory, max_subscribers: int) -> None:
        self._jobs = context.jobs
        self._job_queries = SharedJobQueries(context.jobs, _POLL_INTERVAL / 2)
        self._directory = directory
        self._registry = context.gateway.registry
        self._catalog = self._registry.catalog
        self._events: deque[DirectoryEvent] = deque()
        self._event_bytes = 0
        self._last_number = int(time.time() * 1000)
        self._signal = asyncio.Event()
        self._subscribers = build_limit(
            context.counts, "subscribers to a2a/events", max_subscribers, context.caller_share, retry_after=10.0
        )
        self._is_stopped = False
        self._registry.add_listener(self._on_catalog_change)
        self._registry.health.add_listener(self._on_health_change)

    def stop(self) -> None:
        """End the streams, because the node takes no new requests."""
        self._is_stopped = True
        self._notify()

    async def subscribe(self, params: DirectoryEventsParams, context: DirectoryRequestContext) -> DirectoryStream:
        return DirectoryStream(self._stream_events(params, context), is_finite=False)

    async def _stream_events(
        self, params: DirectoryEventsParams, context: DirectoryRequestContext
    ) -> AsyncGenerator[DirectoryStreamEvent]:
        requested = params.after if context.last_event_id is None else context.last_event_id
        position = self._last_number if requested is None else min(requested, self._last_number)
        tasks: TaskChangePoller | None = None
        if params.includes_tasks:
            tasks = TaskChangePoller(self._jobs, self._job_queries, context.principal, params.task_id)
        self._subscribers.acquire(context.principal.principal_id)
        try:
            initial_changes = await tasks.poll_changes() if tasks is not None else []  # changes count from here on
            yield DirectoryStreamEvent(
                event="subscribed", body={"status": "subscribed"}, number=position, is_answer=True
            )
            while not self._is_stopped:
                signal = self._signal
                while position < self._last_number:
                    if position < self._first_number - 1:
                        position = self._first_number - 1
                        yield DirectoryStreamEvent(event="missed", body={"type": "missed"})
                        continue
                    event = self._events[position + 1 - self._first_number]
                    position = event.number
                    visible = (
                        narrow_manifest(context.principal, event.manifest) if params.includes_type(event.kind) else None
                    )
                    if visible is not None and params.matches_agent(visible):
                        yield DirectoryStreamEvent(
                            event=event.kind, body=self._render_event(event, visible, context), number=event.number
                        )
                for body in (*initial_changes, *(await tasks.poll_changes() if tasks is not None else ())):
                    if params.includes_type(body["type"]):
                        yield DirectoryStreamEvent(event=body["type"], body=body)
                initial_changes = []
                await _wait_for_signal(signal, _POLL_INTERVAL if tasks is not None else None)
        finally:
            self._subscribers.release(context.principal.principal_id)

    @property
    def _first_number(self) -> int:
        return self._events[0].number if self._events else self._last_number + 1

    def _render_event(
        self, event: DirectoryEvent, visible: Manifest, context: DirectoryRequestContext
    ) -> dict[str, Any]:
        return {
            "type": event.kind,
            "agent": self._directory.render_entry(visible, context.base_url),
            "health": event.status,
        }

    def _on_catalog_change(self, catalog: object) -> None:
        previous, self._catalog = self._catalog, self._registry.catalog
        changes = list(_compare_catalogs(previous, self._catalog))
        self._last_number += max(0, len(changes) - _MAX_EVENTS)  # the buffer has no room for these
        for kind, manifest in changes[-_MAX_EVENTS:]:
            self._append(kind, manifest)
        self._notify()

    def _on_health_change(self, agent_id: str, health: Health) -> None:
        manifest = self._registry.catalog.get(agent_id)
        if manifest is not None and not manifest.is_tool:
            self._append("agent.health", manifest)
            self._notify()

    def _notify(self) -> None:
        """Wake all waiting streams; those that wait next get a new signal."""
        self._signal.set()
        self._signal = asyncio.Event()

    def _append(self, kind: DirectoryEventKind, manifest: Manifest) -> None:
        self._last_number += 1
        status = self._registry.health.get(manifest.agent_id).status
        size = len(msgspec.json.encode(manifest))
        if self._events and self._events[-1].number != self._last_number - 1:
            self._events.clear()  # there is a gap
            self._event_bytes = 0
        self._events.append(
            DirectoryEvent(number=self._last_number, kind=kind, manifest=manifest, status=status, size=size)
        )
        self._event_bytes += size
        while len(self._events) > _MAX_EVENTS or (self._event_bytes > _MAX_EVENT_BYTES and len(self._events) > 1):
            self._event_bytes -= self._events.popleft().size


def _compare_catalogs(before: CatalogView, after: CatalogView) -> Iterator[tuple[DirectoryEventKind, Manifest]]:
    for agent_id in sorted(after.changes_since(before)):
        previous, manifest = before.get(agent_id), after.get(agent_id)
        if manifest is None or manifest.is_tool:
            if previous is not None and not previous.is_tool:
                yield "agent.unregistered", previous
        elif previous is None or previous.is_tool:
            yield "agent.registered", manifest
        elif previous != manifest:
            yield "agent.updated", manifest


async def _wait_for_signal(signal: asyncio.Event, timeout: float | None) -> None:
    try:
        async with asyncio.timeout(timeout):
            await signal.wait()
    except TimeoutError:
        pass
