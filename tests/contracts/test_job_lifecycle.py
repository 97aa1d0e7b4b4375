"""What becomes of a job, as pure decisions; and the stores against a plain model of them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2a_fabric.core.call import owner_from_principal
from a2a_fabric.core.errors import BadInput, CallTimeout, Conflict, LeaseLost
from a2a_fabric.core.job import (
    AgentQuota,
    HoldRequest,
    JobError,
    JobOutcome,
    JobState,
    NewJob,
    RetentionPolicy,
    claim_job,
    compute_call_digest,
    create_job,
    decide_after_takeover,
    is_abandoned,
    new_job_id,
    release_job,
    take_over_job,
)
from a2a_fabric.core.stores import Store
from tests.contracts.stores import ENGINES, begun, claim_request, completed, log_of, new_job, opened, tokens
from tests.profiles import examples
from tests.unit.made import LOCAL, call

HOLD = HoldRequest(worker="w", lease=10)


@pytest.mark.parametrize(
    ("about", "attempts", "may_repeat", "state"),
    [
        ({}, 1, False, "failed"),
        ({}, 1, True, "queued"),
        ({}, 0, False, "queued"),
        ({"expires_at": 50.0}, 0, True, "timeout"),
        ({"expires_at": 500.0}, 1, True, "queued"),
    ],
)
def test_what_becomes_of_an_abandoned_job(
    about: dict[str, Any], attempts: int, may_repeat: bool, state: JobState
) -> None:
    job = create_job(new_job(run_at=0.0, **about), 0, now=1.0)
    for _ in range(attempts):
        job = claim_job(job, HOLD, 0, 0, now=2.0)
    outcome = decide_after_takeover(take_over_job(job, HOLD, now=100.0), may_repeat=may_repeat, now=100.0)
    assert outcome.state == state
    if state == "failed":
        assert outcome.error is not None
        assert outcome.error.details == {"reason": "interrupted"}


def test_a_holder_is_alone_until_its_lease_is_over() -> None:
    job = claim_job(create_job(new_job(), 0, now=1.0), HOLD, 0, 0, now=100.0)
    assert not is_abandoned(job, now=109.9)
    assert is_abandoned(job, now=110.0)


def test_each_holder_gets_a_higher_fence_and_the_old_one_is_refused() -> None:
    first = claim_job(create_job(new_job(), 0, now=1.0), HOLD, 0, 0, now=2.0)
    second = take_over_job(first, HOLD, now=100.0)
    assert second.fence > first.fence
    with pytest.raises(LeaseLost):
        release_job(second, first.fencing_token, JobOutcome(state="completed"), 0, now=101.0)


@pytest.mark.parametrize("priority", [-5, 0, 5, 99])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    with pytest.raises(BadInput):
        create_job(new_job(priority=priority), 0, now=1.0)


def test_an_error_comes_back_as_it_was_raised() -> None:
    kept = JobError.from_error(CallTimeout(5, agent_id="percy"))
    again = kept.to_error()
    assert isinstance(again, CallTimeout)
    assert (again.message, again.details) == ("No answer within 5 s", {"agent_id": "percy"})


def test_a_digest_is_of_what_was_asked_and_nothing_else() -> None:
    one, same, other = call(context={"a": 1, "b": 2}), call(context={"b": 2, "a": 1}, timeout_ms=9), call(task="x")
    assert compute_call_digest(one) == compute_call_digest(same) != compute_call_digest(other)


def test_ids_sort_by_age_and_owners_by_who_they_are() -> None:
    assert new_job_id(1.0) < new_job_id(2.0) < new_job_id()
    assert len({new_job_id() for _ in range(1000)}) == 1000
    assert owner_from_principal(LOCAL) == "psk:alice"


@given(
    waiting=st.lists(st.sampled_from("abc"), max_size=30),
    running=st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)),
    limits=st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)),
    default=st.none() | st.integers(0, 3),
    limit=st.integers(1, 12),
)
def test_room_is_never_exceeded_and_never_left_empty(
    waiting: list[str], running: dict[str, int], limits: dict[str, int], default: int | None, limit: int
) -> None:
    room = AgentQuota(
        claim_request(limit=limit, limits=limits, default_limit=default), lambda agent: running.get(agent, 0)
    )
    chosen = list(room.choose(((agent, (at, agent)) for at, agent in enumerate(waiting)), limit))
    assert chosen == sorted(chosen)
    assert len(chosen) <= limit
    for agent in "abc":
        most = limits.get(agent, default)
        got = sum(each == agent for _, each in chosen)
        if most is not None:
            assert got == 0 or running.get(agent, 0) + got <= most
        if len(chosen) < limit:
            free = len(waiting) if most is None else max(0, most - running.get(agent, 0))
            assert got == min(free, waiting.count(agent))


STEP = st.sampled_from(["append", "append", "release", "expire", "park", "end"])


@pytest.mark.parametrize("engine", list(ENGINES))
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(st.tuples(STEP, st.integers(1, 3)), max_size=12))
def test_whatever_happens_to_a_job_its_log_has_no_gap_and_no_repeat(engine: str, steps: list[tuple[str, int]]) -> None:
    asyncio.run(_live(engine, steps))


async def _live(engine: str, steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with opened(ENGINES[engine](Path(folder))) as store:
            await _steps(store, steps)


async def _steps(store: Store, steps: list[tuple[str, int]]) -> None:
    job = await begun(store)
    written: list[str] = []
    for step, count in steps:
        words = [f"{len(written) + n}" for n in range(count)]
        written += words
        old = job.fencing_token
        if step == "append":
            assert await store.jobs.append(job.fencing_token, tokens(*words)) == len(written)
            continue
        if step == "end":
            await store.jobs.release(job.fencing_token, completed("42", *words))
            break
        if step == "expire":
            await store.jobs.append(job.fencing_token, tokens(*words))
            await store.jobs.heartbeat([job.fencing_token], 0)
            [job] = await store.jobs.take_over(HOLD)
        elif step == "release":
            await store.jobs.release(job.fencing_token, JobOutcome(state="queued", run_at=0.0, events=tokens(*words)))
            [job] = await store.jobs.claim(claim_request())
        else:
            await store.jobs.release(
                job.fencing_token, JobOutcome(state="input_required", question={}, events=tokens(*words))
            )
            await store.jobs.answer(job.job_id, {})
            [job] = await store.jobs.claim(claim_request())
        with pytest.raises(LeaseLost):
            await store.jobs.append(old, tokens("from the past"))
    assert await log_of(store, job.job_id) == list(enumerate(written, 1))


@pytest.mark.parametrize("engine", list(ENGINES))
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from(["alice", "bob"]), st.sampled_from([None, "k1", "k2"]), st.sampled_from("xy")),
        max_size=20,
    )
)
def test_a_key_stands_for_one_request_of_one_owner(engine: str, asked: list[tuple[str, str | None, str]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with opened(ENGINES[engine](Path(folder))) as store:
                await _ask(store, asked)

    asyncio.run(run())


async def _ask(store: Store, asked: list[tuple[str, str | None, str]]) -> None:
    first: dict[tuple[str, str], tuple[str, str]] = {}
    news = [NewJob(job_id=new_job_id(), owner=o, key=k, digest=d, call=call(task=d)) for o, k, d in asked]
    answers = await asyncio.gather(*(store.jobs.accept(new) for new in news), return_exceptions=True)
    for new, answer, (owner, key, digest) in zip(news, answers, asked, strict=True):
        known = first.get((owner, key)) if key is not None else None
        if known is not None and known[1] != digest:
            assert isinstance(answer, Conflict)
            continue
        assert not isinstance(answer, BaseException)
        assert (answer.is_new, answer.job.job_id) == ((known is None), known[0] if known else new.job_id)
        if key is not None and known is None:
            first[owner, key] = (new.job_id, digest)
    assert (await store.jobs.prune(RetentionPolicy(max_age=0.0))).jobs == 0
