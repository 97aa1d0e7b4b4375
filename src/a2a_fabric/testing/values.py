"""Short ways to make calls, manifests, jobs and messages in a test; used by the contract suites and open to authors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Call, Input, Principal, ResponseForm, Target
from a2a_fabric.core.job import ClaimRequest, HoldRequest, Job, JobOutcome, NewJob, new_job_id
from a2a_fabric.core.message import NewMessage, Party, new_message_id
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Event, Part, Result, token
from a2a_fabric.core.stores import Store

TIMEOUT = 30.0  # seconds until a test gives up waiting
LOCAL_CALLER = Principal(mode="psk", principal_id="alice", trust="local")
CANCELLED_OUTCOME = JobOutcome(state="cancelled", events=(token("cancelled"),))

T = TypeVar("T")


def make_manifest(agent_id: str, *capabilities: str | Capability, **fields: Any) -> Manifest:
    offered = tuple(Capability(name=each) if isinstance(each, str) else each for each in capabilities)
    fields.setdefault("endpoint", {"transport": "local", "uri": f"test:{agent_id}"})
    return Manifest(agent_id=agent_id, capabilities=offered, **fields)


def make_call(
    agent_id: str = "percy",
    capability: str = "reason",
    *,
    task: str = "think",
    context: dict[str, Any] | None = None,
    stream: bool = False,
    timeout_ms: int = 5000,
    auth: Principal = LOCAL_CALLER,
) -> Call:
    return Call(
        trace=new_trace(),
        auth=auth,
        target=Target(agent_id=agent_id, capability=capability, timeout_ms=timeout_ms),
        input=Input(task=task, context=context or {}),
        response=ResponseForm(stream=stream),
    )


def make_new_job(agent_id: str = "percy", owner: str = "psk:alice", task: str = "think", **fields: Any) -> NewJob:
    return NewJob(**{"job_id": new_job_id(), "owner": owner, "call": make_call(agent_id, task=task), **fields})


def make_claim_request(worker: str = "w1", limit: int = 1, lease: float = 60.0, **fields: Any) -> ClaimRequest:
    return ClaimRequest(hold=HoldRequest(worker=worker, lease=lease), limit=limit, **fields)


async def accept_and_claim(store: Store, new: NewJob | None = None, lease: float = 60.0) -> Job:
    """One job that a worker holds."""
    accepted = await store.jobs.accept(new or make_new_job())
    claimed = await store.jobs.claim(make_claim_request(limit=1000, lease=lease))
    return next(job for job in claimed if job.job_id == accepted.job.job_id)


def make_tokens(*texts: str) -> tuple[Event, ...]:
    return tuple(token(text) for text in texts)


def make_completed_outcome(answer: str = "42", *last: str) -> JobOutcome:
    return JobOutcome(state="completed", result=Result(data={"answer": answer}), events=make_tokens(*last))


async def read_event_log(store: Store, job_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, str]]:
    """The whole log of a job, page by page, as (number, text)."""
    entries: list[tuple[int, str]] = []
    while True:
        page = await store.jobs.events(job_id, after=after, limit=limit)
        entries += [(entry.number, entry.event.data["text"]) for entry in page.events]
        if page.upto >= page.last:
            return entries
        after = page.upto


def make_new_message(*to: str, text: str = "hello", conversation: str = "conv_1", **fields: Any) -> NewMessage:
    return NewMessage(
        message_id=new_message_id(),
        conversation_id=conversation,
        owner="psk:alice",
        sender=Party(id="alice", kind="client"),
        recipients=tuple(Party(id=each) for each in to),
        parts=(Part(kind="text", text=text),),
        **fields,
    )


def join_text(parts: Sequence[Part]) -> str:
    return "".join(part.text or "" for part in parts)


async def wait_until(check: Callable[[], Awaitable[T]], timeout: float = TIMEOUT) -> T:
    """What `check` returns as soon as that is true. Raises TimeoutError."""
    async with asyncio.timeout(timeout):
        while not (value := await check()):  # noqa: ASYNC110  # what is awaited has no event of its own
            await asyncio.sleep(0.01)
    return value
