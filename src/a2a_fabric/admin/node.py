"""A running node as its operators see it: overview, agents, jobs and messages of all callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from a2a_fabric.admin.activity import Activity, ActivityReport, render_activity, render_agent_activity
from a2a_fabric.admin.log_lines import NodeLog
from a2a_fabric.admin.processes import WORKERS_CHECK, Processes
from a2a_fabric.config import Config
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.disclosure import OPERATOR_PRINCIPAL, acts_as_operator, redact_health_reason
from a2a_fabric.core.errors import AgentNotFound, ConfigError, Conflict, Forbidden, StoreError
from a2a_fabric.core.job import Job, JobFilter, JobState, JobSummary, is_final_state
from a2a_fabric.core.keys import KeyStore
from a2a_fabric.core.message import Message, inbox_name
from a2a_fabric.core.result import Answer
from a2a_fabric.core.retry import Breaker
from a2a_fabric.core.stores import Store, call_store, job_topic
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.gateway import Gateway
from a2a_fabric.importing.secrets import References
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.views import render_job, render_request
from a2a_fabric.messages.delivery import MESSAGE_META
from a2a_fabric.operations.agents import render_health
from a2a_fabric.operations.views import flag_changed_tools, render_agent, render_health_check, render_registration
from a2a_fabric.registry.registration import Registrar
from a2a_fabric.version import __version__

if TYPE_CHECKING:
    from a2a_fabric.admin.agent_files import AgentFiles

# Questions to the other processes, and what they are told to do.
_FIGURES, _AGENTS, _STATUSES, _CHANGED = "figures", "agents", "statuses", "tools.changed"
_RELOAD, _PROBE, _APPROVE = "agents.reload", "agent.probe", "tools.approve"
_BREAKER_STATES = ("closed", "trial", "open")
_STORE_TIMEOUT = 3.0
_MAX_PROBLEMS = 50
_MAX_CHECKS = 2000
_RECENT_JOBS, _MAX_CONVERSATIONS = 200, 50
_LIVE_AT_ONCE = 8  # agents whose figures are computed between two turns of the event loop: many minutes of each


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of the node tells of itself. `failed` are its checks: a sentence for all, one for operators."""

    started_at: float
    activity: ActivityReport
    failed: dict[str, tuple[str, str]] = {}


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one process knows of an agent from its own calls and checks."""

    activity: ActivityReport
    latency_ms: float | None = None
    seen_at: float | None = None
    breaker: str = "closed"
    in_flight: int = 0


class Node(msgspec.Struct, kw_only=True, dict=True):  # for its cached property
    """What the operations of operators work with. `secrets` are never shown, wherever they turn up."""

    get_config: Callable[[], Config]  # as it counts now
    gateway: Gateway
    registrar: Registrar
    jobs: Jobs
    store: Store
    store_address: str
    load_files: Callable[[], AgentFiles]
    activity: Activity
    log: NodeLog
    find_breaker: Callable[[str], Breaker | None]
    probe_soon: Callable[[str], None]
    reload_file: Callable[[Path], Awaitable[None]]
    list_warnings: Callable[[], list[str]]
    processes: Processes
    secrets: Collection[str] = ()
    is_stopping: bool = False

    def __post_init__(self) -> None:
        for question, answer in (
            (_FIGURES, self._answer_figures),
            (_AGENTS, self._answer_agents),
            (_STATUSES, self._answer_statuses),
            (_CHANGED, self._answer_changed),
            (_RELOAD, self._answer_reload),
            (_PROBE, self._answer_probe),
            (_APPROVE, self._answer_approve),
        ):
            self.processes.add(question, answer)
        if not self.processes.is_single:
            own, *others = self.processes.names
            self.gateway.registry.statuses.connect(own, others, self._ask_statuses)

    @property
    def config(self) -> Config:
        return self.get_config()

    @cached_property
    def files(self) -> AgentFiles:
        """The files of agents; what edits them is loaded when it is first needed."""
        return self.load_files()

    @property
    def keys(self) -> KeyStore:
        return self.store.keys

    def stop(self) -> None:
        """Answer those who wait for news; the node would wait for them."""
        self.is_stopping = True

    async def show_overview(self, reader: Principal) -> dict[str, Any]:
        registry = self.gateway.registry
        health, answers = await asyncio.gather(render_health(self.gateway, reader), self.processes.ask(_FIGURES))
        figures = {name: msgspec.convert(answer, ProcessFigures) for name, answer in answers.by_name.items()}
        off = registry.switched_off
        # In a thread: what the views name is compared with all agents and tools.
        warnings = await asyncio.to_thread(self.list_warnings) if acts_as_operator(reader) else []
        return {
            "node_id": self.gateway.node_id,
            "version": __version__,
            "now": time.time(),
            "started_at": self.gateway.started_at,
            "listen": self.config.listen,
            "public_url": self.config.public_url,
            "store": await self._show_store(),
            "agents": {**health["runtimes"], "total": len(registry.catalog.agents), "off": len(off)},
            "tools": len(registry.catalog.tools),
            "nodes": await self._count_nodes(),
            "mesh": health.get("mesh"),
            "mesh_nodes": self._list_mesh_nodes(reader),
            "worker": self.processes.name,
            "processes": [_render_process(name, each) for name, each in sorted(figures.items())],
            "missing_processes": answers.missing,
            "activity": render_activity([each.activity for each in figures.values()]),
            "problems": self._list_problems(reader, health, figures, answers.missing, warnings),
            "failing": health["agents"]["errors"],
            "more_failing": health["agents"].get("more_errors", 0),
            "doors": [str(table.get("kind")) for table in self.config.doors],
            "issuers": [issuer.id for issuer in self.config.auth.issuers],
            "can_add": self.files.can_add,
            "can_add_programs": self.files.may_run_programs,
            "revision": registry.changes.revision,
        }

    async def list_agents(self, reader: Principal, known: str | None) -> dict[str, Any]:
        """Short rows of all agents, unless nothing has changed since `known`."""
        registry = self.gateway.registry
        await registry.statuses.refresh()
        process = self.processes.name or ""  # each numbers the changes of its own catalog
        stamp = f"{process}{registry.changes.revision}-{registry.statuses.stamp}-{len(registry.switched_off)}"
        if known == stamp:
            return {"stamp": stamp, "unchanged": True}
        catalog = registry.catalog
        rows: list[tuple[str, msgspec.Raw]] = []  # encoded here, in slices, so that the reply is only put together
        async for manifests in iterate_in_slices(catalog.agents):
            rows += [_encode_row(self._render_row(manifest, reader)) for manifest in manifests]
        async for manifests in iterate_in_slices(tuple(registry.switched_off.values())):
            rows += [
                _encode_row({**_render_facts(manifest, manifest.runtime), "status": "off"})
                for manifest in manifests
                if catalog.get(manifest.agent_id) is None
            ]
        rows.sort(key=itemgetter(0))
        return {"stamp": stamp, "agents": list(map(itemgetter(1), rows)), "count": len(rows)}

    async def show_live(self, reader: Principal, agent_ids: Sequence[str]) -> dict[str, Any]:
        """What changes from moment to moment, of the agents that are on the screen."""
        await self.gateway.registry.statuses.refresh()
        reports = await self._ask_agents(agent_ids)
        rows: dict[str, dict[str, Any]] = {}
        async for names in iterate_in_slices(agent_ids, _LIVE_AT_ONCE):
            rows |= {name: self._render_live(name, reader, reports[name]) for name in names}
        return {"agents": rows}

    async def show_agent(self, reader: Principal, agent_id: str, hours: float) -> dict[str, Any]:
        registry = self.gateway.registry
        manifest = registry.catalog.get(agent_id)
        try:
            entry, trouble = await self.files.find_entry(agent_id), None
        except ConfigError as error:  # a file that is being edited: the agents go on as they were
            entry, trouble = None, error.message if acts_as_operator(reader) else "The files of agents cannot be read"
        if manifest is None and agent_id in registry.switched_off:
            return {"agent": self._render_switched_off(agent_id), "editable": entry is not None}
        if manifest is None or manifest.is_tool:
            raise AgentNotFound(agent_id, self._list_hints(agent_id))
        await registry.statuses.refresh()
        details = render_agent(manifest, registry.statuses.get(agent_id), reader, registry.find_runtime_kind(manifest))
        report = registry.describe_tools(agent_id)
        flag_changed_tools(details, report)
        registration = await self.registrar.find_registration(agent_id)
        if registration is not None:
            details["registration"] = render_registration(registration)
        uptime, checks = await self.registrar.read_history(agent_id, hours * 3600, _MAX_CHECKS)
        declared = None if entry is None else entry[1]
        choice = None if declared is None else declared.tools
        return {
            "agent": details,
            "live": self._render_live(agent_id, reader, (await self._ask_agents([agent_id]))[agent_id]),
            "uptime": {"observed_seconds": uptime.observed, "up_seconds": uptime.up, "ratio": uptime.ratio},
            "checks": [render_health_check(check, reader) for check in checks],
            "manifest": _render_manifest(declared) if declared is not None and acts_as_operator(reader) else None,
            "path": str(entry[0]) if entry is not None and acts_as_operator(reader) else None,
            "excluded": list(choice.exclude) if choice is not None else [],
            "changes": [msgspec.to_builtins(change) for change in report.changes],
            "marks": list(report.marks),
            "editable": entry is not None,
            "trouble": trouble,
        }

    async def list_tool_changes(self, agent_id: str | None) -> dict[str, Any]:
        """Each process learns of a change when it asks the agent."""
        if agent_id is not None:
            self._check_exists(agent_id)
        answers = (await self.processes.ask(_CHANGED, {"agent_id": agent_id})).by_name.values()
        by_agent = {each["agent_id"]: each for answer in reversed(list(answers)) for each in answer}
        return {"agents": [by_agent[name] for name in sorted(by_agent)]}

    async def approve_tools(self, agent_id: str, patterns: Sequence[str]) -> dict[str, Any]:
        """In all processes: each keeps what changed until it is approved."""
        self._check_exists(agent_id)
        answers = await self.processes.ask(_APPROVE, {"agent_id": agent_id, "patterns": list(patterns)})
        approved = dict.fromkeys(name for names in answers.by_name.values() for name in names)
        return {"agent_id": agent_id, "approved": list(approved)}

    def _check_exists(self, agent_id: str) -> None:
        """Raises AgentNotFound."""
        if self.gateway.registry.catalog.get(agent_id) is None:
            raise AgentNotFound(agent_id, self._list_hints(agent_id))

    def _list_hints(self, agent_id: str) -> Iterator[str]:
        return self.gateway.registry.list_hints(OPERATOR_PRINCIPAL, agent_id)

    async def probe(self, agent_id: str) -> dict[str, Any]:
        self._check_exists(agent_id)
        await self.processes.ask(_PROBE, {"agent_id": agent_id})
        return {"agent_id": agent_id, "probing": True}

    def list_known_tools(self, agent_id: str) -> list[str] | None:
        """What the agent offers now, without what is left out; None if this is not known."""
        manifest = self.gateway.registry.catalog.get(agent_id)
        return None if manifest is None else [each.name for each in manifest.capabilities]

    async def reload_agents(self, path: Path) -> None:
        """All processes take the changed file over now, so that the reply is true whichever is asked next."""
        await self.processes.ask(_RELOAD, {"path": str(path)})

    async def list_jobs(
        self, reader: Principal, states: Sequence[JobState], agent_id: str | None, cursor: str | None, limit: int
    ) -> dict[str, Any]:
        query = JobFilter(agent_id=agent_id, states=tuple(states) or None)
        page = await self.jobs.list_internal(query, cursor=cursor, limit=limit)
        status = await call_store(self.store.status)
        render = render_job if acts_as_operator(reader) else _render_without_contents
        jobs = [{**render(job), "owner": job.owner, "internal": job.meta.get("kind")} for job in page.jobs]
        return {"jobs": jobs, "cursor": page.cursor, "counts": status.jobs}

    async def show_job(self, reader: Principal, job_id: str, after: int, wait: float) -> dict[str, Any]:
        """The job, and its events after a number; waits for one if there is none and the job goes on."""
        job = await self.jobs.get_any(job_id)
        page = await call_store(self.store.jobs.events, job_id, after=after)
        if not page.events and wait > 0 and not is_final_state(page.state) and not self.is_stopping:
            with self.store.notices.watch(job_topic(job_id)) as handle:
                await handle.wait(wait)
            job = await self.jobs.get_any(job_id)
            page = await call_store(self.store.jobs.events, job_id, after=after)
        is_private = not acts_as_operator(reader)  # contents are the caller's: viewers see how it goes
        events = [
            {
                "number": each.number,
                "at": each.at,
                "event": each.event.kind,
                "data": {key: value for key, value in each.event.data.items() if not is_private or key in _OPEN_FIELDS},
            }
            for each in page.events
        ]
        details = {**_hide_contents(render_job(job)), "private": True} if is_private else _render_whole_job(job)
        return {
            "job": {**details, "owner": job.owner},
            "events": events,
            "upto": page.upto,
            "complete": page.is_complete,
        }

    async def cancel_job(self, job_id: str) -> dict[str, Any]:
        job = await self.jobs.get_any(job_id)
        return render_job(await self.jobs.cancel(_act_as_owner(job), job_id))

    async def retry_job(self, job_id: str) -> dict[str, Any]:
        job = await self.jobs.get_any(job_id)
        return render_job(await self.jobs.retry(_act_as_owner(job), job_id))

    async def answer_job(self, job_id: str, answers: dict[str, Answer]) -> dict[str, Any]:
        job = await self.jobs.get_any(job_id)
        return render_job(await self.jobs.answer(_act_as_owner(job), job_id, answers))

    async def list_views(self) -> dict[str, Any]:
        catalog = self.gateway.registry.catalog
        views: list[dict[str, Any]] = []
        for view in self.config.views:
            included: list[str] = []
            tools = 0
            async for manifests in iterate_in_slices([*catalog.agents, *catalog.tools]):
                for manifest in manifests:
                    count = sum(view.includes(manifest, each.name) for each in manifest.capabilities)
                    if count or (not manifest.capabilities and view.may_include(manifest)):
                        included.append(manifest.agent_id)
                        tools += count
            rules = {key: value for key, value in msgspec.to_builtins(view).items() if value and key != "name"}
            views.append({"name": view.name, "rules": rules, "agents": included[:200], "agent_count": len(included),
                          "tool_count": tools})  # fmt: skip
        return {"views": views}

    async def show_messages(self, reader: Principal, conversation_id: str | None, inbox: str | None) -> dict[str, Any]:
        """What people and agents wrote is for operators."""
        messages, is_operator = self.store.messages, acts_as_operator(reader)
        if conversation_id is not None:
            if not is_operator:
                raise Forbidden("Viewers see that there are conversations, but only operators read them")
            page = await call_store(messages.read_conversation, conversation_id, limit=200)
            return {"conversation_id": conversation_id, "messages": [_render_message(each) for each in page]}
        if inbox is not None:
            statuses = [await call_store(messages.status, inbox_name(inbox, kind)) for kind in ("agent", "client")]
            return {"inboxes": [msgspec.to_builtins(each) for each in statuses]}
        topics = await call_store(messages.list_topics, limit=200)
        ids = [each.agent_id for each in self.gateway.registry.catalog.agents[:200]]
        statuses = []
        async for agent_ids in iterate_in_slices(ids):
            statuses += [await call_store(messages.status, inbox_name(agent_id)) for agent_id in agent_ids]
        busy = [msgspec.to_builtins(each) for each in statuses if each.waiting or each.held]
        return {
            "topics": [{"topic": name, "subscribers": count} for name, count in topics],
            "inboxes": busy,
            "conversations": await self._list_conversations(with_text=is_operator),
        }

    async def _list_conversations(self, *, with_text: bool) -> list[dict[str, Any]]:
        """Those of the latest deliveries, newest first: each delivery of a message is a job."""
        page = await self.jobs.list_internal(JobFilter(), limit=_RECENT_JOBS)
        found: dict[str, dict[str, Any]] = {}
        for job in page.jobs:
            message_id = job.meta.get(MESSAGE_META)
            if message_id is None or len(found) >= _MAX_CONVERSATIONS:
                continue
            message = await call_store(self.store.messages.get, str(message_id))
            if message is not None and message.conversation_id not in found:
                words = next((part.text for part in message.parts if part.text), "")
                found[message.conversation_id] = {
                    "conversation_id": message.conversation_id,
                    "agent_id": job.agent_id,
                    "from": message.sender.id,
                    "text": words[:200] if with_text else "",
                    "at": message.sent_at,
                }
        return list(found.values())

    async def _show_store(self) -> dict[str, Any]:
        began_at = time.perf_counter()
        kind = self.store_address.partition(":")[0]
        try:
            async with asyncio.timeout(_STORE_TIMEOUT):
                status = await call_store(self.store.status)
        except (StoreError, TimeoutError) as exc:
            reason = exc.message if isinstance(exc, StoreError) else f"no answer within {_STORE_TIMEOUT:g} s"
            return {"kind": kind, "state": "down", "error": reason}
        return {
            "kind": status.kind,
            "state": "ok",
            "latency_ms": round((time.perf_counter() - began_at) * 1000, 2),
            "jobs": status.jobs,
            "messages": status.messages,
            "bytes": status.bytes,
        }

    async def _count_nodes(self) -> list[dict[str, Any]]:
        """The machines and nodes behind which the agents are."""
        nodes: dict[str, dict[str, int]] = {}
        async for manifests in iterate_in_slices(self.gateway.registry.catalog.agents):
            for manifest in manifests:
                counts = nodes.setdefault(manifest.node_id, {"agents": 0, "offline": 0})
                counts["agents"] += 1
                counts["offline"] += self.gateway.registry.statuses.get(manifest.agent_id).status == "offline"
        return [{"node_id": name, **counts} for name, counts in sorted(nodes.items())][:_MAX_PROBLEMS]

    def _list_mesh_nodes(self, reader: Principal) -> list[dict[str, Any]]:
        if self.gateway.nodes is None or not acts_as_operator(reader):
            return []
        return list(msgspec.to_builtins(list(self.gateway.nodes.list_nodes())))

    async def _answer_figures(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """This process, for the one that was asked."""
        checks = await self.gateway.node_health.check_own()
        failed = {
            name: (result.reason or result.status, result.detail or result.reason or result.status)
            for name, result in checks.items()
            if result.status != "ok"
        }
        figures = ProcessFigures(started_at=self.gateway.started_at, activity=self.activity.report(), failed=failed)
        return dict(msgspec.to_builtins(figures))

    async def _answer_agents(self, arguments: dict[str, Any]) -> dict[str, Any]:
        reports = await self._report_agents(arguments["agent_ids"])
        return {name: msgspec.to_builtins(report) for name, report in reports.items()}

    async def _report_agents(self, agent_ids: Sequence[str]) -> dict[str, AgentReport]:
        reports: dict[str, AgentReport] = {}
        async for names in iterate_in_slices(agent_ids, _LIVE_AT_ONCE):
            reports |= {name: self._report_agent(name) for name in names}
        return reports

    async def _answer_statuses(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self.gateway.registry.statuses.answer(arguments)))

    async def _ask_statuses(self, questions: Mapping[str, dict[str, Any]]) -> Mapping[str, Any]:
        """Only the other processes."""
        answers = await self.processes.ask_others(_STATUSES, questions)
        return answers.by_name

    async def _answer_reload(self, arguments: dict[str, Any]) -> None:
        await self.reload_file(Path(arguments["path"]))

    async def _answer_probe(self, arguments: dict[str, Any]) -> None:
        if self.gateway.registry.catalog.get(arguments["agent_id"]) is not None:
            self.probe_soon(arguments["agent_id"])

    async def _answer_approve(self, arguments: dict[str, Any]) -> list[str]:
        return self.gateway.registry.approve_tools(arguments["agent_id"], arguments["patterns"])

    async def _answer_changed(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        registry, wanted = self.gateway.registry, arguments["agent_id"]
        changed: list[dict[str, Any]] = []
        async for manifests in iterate_in_slices(registry.catalog.agents):
            for manifest in manifests:
                report = registry.describe_tools(manifest.agent_id)
                if wanted in (None, manifest.agent_id) and (report.changes or report.problems):
                    changed.append({"agent_id": manifest.agent_id, **msgspec.to_builtins(report)})
        return changed

    def _report_agent(self, agent_id: str) -> AgentReport:
        health, breaker = self.gateway.registry.health.get(agent_id), self.find_breaker(agent_id)
        return AgentReport(
            activity=self.activity.report_agent(agent_id),
            latency_ms=None if health.latency is None else round(health.latency * 1000, 2),
            seen_at=health.seen_at,
            breaker="closed" if breaker is None else breaker.state,
            in_flight=self.gateway.count_calls(agent_id),
        )

    async def _ask_agents(self, agent_ids: Sequence[str]) -> dict[str, list[AgentReport]]:
        """What each process knows of some agents."""
        if self.processes.is_single:
            return {name: [report] for name, report in (await self._report_agents(agent_ids)).items()}
        answers = (await self.processes.ask(_AGENTS, {"agent_ids": list(agent_ids)})).by_name.values()
        return {name: [msgspec.convert(answer[name], AgentReport) for answer in answers] for name in agent_ids}

    def _list_problems(
        self,
        reader: Principal,
        health: Mapping[str, Any],
        figures: Mapping[str, ProcessFigures],
        missing: Sequence[str],
        warnings: Sequence[str],
    ) -> list[dict[str, str]]:
        """What is hidden or misconfigured, one sentence each."""
        problems = [{"kind": "source", "where": where, "text": text} for where, text in health["problems"].items()]
        for name, check in health["checks"].items():
            if check.get("status") != "ok" and name != WORKERS_CHECK:  # the figures say more
                problems.append({"kind": "check", "where": name, "text": str(check.get("reason") or check["status"])})
        own = {(problem["where"], problem["text"]) for problem in problems}
        for process, each in figures.items():
            for name, (public, whole) in each.failed.items():
                text = whole if acts_as_operator(reader) else public
                if (name, text) not in own:
                    problems.append({"kind": "check", "where": f"{name} of {process}", "text": text})
        problems += [
            {"kind": "process", "where": name, "text": "This process does not answer; its figures are missing here"}
            for name in missing
        ]
        if acts_as_operator(reader):
            problems += [{"kind": "setting", "where": "fabric.yaml", "text": text} for text in warnings]
            notices = self.gateway.list_notices(reader)
            problems += [{"kind": "notice", "where": "tools", "text": text} for text in notices]
        return problems[:_MAX_PROBLEMS]

    def _render_row(self, manifest: Manifest, reader: Principal) -> dict[str, Any]:
        registry = self.gateway.registry
        health = registry.statuses.get(manifest.agent_id)
        row = {**_render_facts(manifest, registry.find_runtime_kind(manifest)), "status": health.status}
        if health.error is not None:
            row["error"] = redact_health_reason(health, reader)
        since = registry.statuses.find_change_time(manifest.agent_id) if health.status != "online" else None
        if since is not None:
            row["since"] = since
        return row

    def _render_live(self, agent_id: str, reader: Principal, reports: Sequence[AgentReport]) -> dict[str, Any]:
        """The newest check counts, and the breaker that lets least through."""
        statuses = self.gateway.registry.statuses
        health = statuses.get(agent_id)
        newest = max(reports, key=lambda each: each.seen_at or 0.0)
        return {
            **render_agent_activity([each.activity for each in reports]),
            "status": health.status,
            "latency_ms": newest.latency_ms,
            "seen_at": newest.seen_at,
            "error": redact_health_reason(health, reader),
            "since": statuses.find_change_time(agent_id),
            "breaker": max((each.breaker for each in reports), key=_BREAKER_STATES.index),
            "in_flight": sum(each.in_flight for each in reports),
        }

    def _render_switched_off(self, agent_id: str) -> dict[str, Any]:
        manifest = self.gateway.registry.switched_off[agent_id]
        return {**_render_facts(manifest, manifest.runtime), "status": "off", "capabilities": []}


def _encode_row(row: dict[str, Any]) -> tuple[str, msgspec.Raw]:
    return row["agent_id"], msgspec.Raw(msgspec.json.encode(row))


def _render_process(name: str, figures: ProcessFigures) -> dict[str, Any]:
    rates = render_activity([figures.activity])
    return {
        "name": name,
        "started_at": figures.started_at,
        "calls_total": figures.activity.calls_total,
        "errors_total": figures.activity.errors_total,
        "calls_per_second": (rates["calls_per_second"] or [0.0])[-1],
    }


def _render_facts(manifest: Manifest, runtime: str | None) -> dict[str, Any]:
    return {
        "agent_id": manifest.agent_id,
        "display_name": manifest.display_name or manifest.agent_id,
        "description": manifest.description[:200],
        "runtime": manifest.runtime or runtime,
        "node_id": manifest.node_id,
        "trust_tier": manifest.trust_tier,
        "tags": list(manifest.tags),
        "tools": len(manifest.capabilities),
        "pool": manifest.pool,
    }


def _render_manifest(manifest: Manifest) -> dict[str, Any]:
    """As declared, without what is the default, and with secrets replaced by names."""
    safe = msgspec.structs.replace(
        manifest, endpoint=References().replace_endpoint(manifest.agent_id, manifest.endpoint)
    )
    defaults = msgspec.to_builtins(Manifest(agent_id=manifest.agent_id, endpoint={}))
    fields = msgspec.to_builtins(safe)
    return {name: value for name, value in fields.items() if name == "agent_id" or value != defaults.get(name)}


def _render_message(message: Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "number": message.number,
        "sent_at": message.sent_at,
        "from": message.sender.id,
        "to": [party.id for party in message.recipients],
        "topic": message.topic,
        "reply_to": message.reply_to,
        "parts": [msgspec.to_builtins(part) for part in message.parts],
    }


_OPEN_FIELDS = ("status", "percent")  # of a job's event


def _render_whole_job(job: Job) -> dict[str, Any]:
    result = None if job.result is None else {"data": job.result.data, "parts": job.result.parts}
    return {**render_job(job), **render_request(job), "result": result}


def _render_without_contents(job: JobSummary) -> dict[str, Any]:
    return _hide_contents(render_job(job))


def _hide_contents(view: dict[str, Any]) -> dict[str, Any]:
    """Without questions, keys and addresses of the job's caller; of an error only the code."""
    kept = {key: value for key, value in view.items() if key not in ("input_required", "idempotency_key", "webhook")}
    if "error" in kept:
        kept["error"] = {"code": kept["error"]["code"], "message": "Operators see why", "details": {}}
    return kept


def _act_as_owner(job: Job) -> Principal:
    """The caller whose job it is: what the operator does is done for it, within its rights. Raises Conflict."""
    principal = job.call.auth
    if owner_from_principal(principal) != job.owner:
        raise Conflict(f"Job '{job.job_id}' cannot be changed: its caller is not known any more")
    return principal
