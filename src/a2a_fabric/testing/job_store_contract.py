"""The contract of `Store.jobs`: accepting, claiming, events, outcomes, leases, pruning."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from a2a_fabric.core.errors import BadInput, Conflict, JobNotFound, LeaseLost
from a2a_fabric.core.job import (
    FencingToken,
    HoldRequest,
    JobError,
    JobFilter,
    JobOutcome,
    JobState,
    RetentionPolicy,
    compute_call_digest,
    decide_after_takeover,
    new_job_id,
)
from a2a_fabric.core.result import Event, Result, token
from a2a_fabric.core.stores import WORK_TOPIC, Store, job_topic
from a2a_fabric.testing.values import (
    CANCELLED_OUTCOME,
    TIMEOUT,
    accept_and_claim,
    make_call,
    make_claim_request,
    make_completed_outcome,
    make_new_job,
    make_tokens,
    read_event_log,
    wait_until,
)


class JobStoreContract:
    """Every test gets a fixture `store`: an empty store that is open."""

    async def test_an_accepted_job_is_found_with_everything_that_was_sent(self, store: Store) -> None:
        new = make_new_job(
            priority=3, expires_at=9e9, key="k", digest="d", retention=5.0, meta={"webhook": {"url": "x"}}
        )
        accepted = await store.jobs.accept(new)
        assert accepted.is_new
        job = await store.jobs.get(new.job_id)
        assert job is not None
        assert job.call == new.call
        assert (job.state, job.owner, job.agent_id, job.capability) == ("queued", "psk:alice", "percy", "reason")
        assert (job.priority, job.expires_at, job.key, job.digest, job.retention) == (3, 9e9, "k", "d", 5.0)
        assert (job.attempt, job.events, job.lease, job.result, job.meta) == (
            0,
            0,
            None,
            None,
            {"webhook": {"url": "x"}},
        )
        assert await store.jobs.find("psk:alice", "k") == job
        assert await store.jobs.find("psk:bob", "k") is None

    async def test_an_unknown_job_is_none_or_says_so(self, store: Store) -> None:
        unknown = new_job_id()
        assert await store.jobs.get(unknown) is None
        assert await store.jobs.heartbeat([FencingToken(unknown, 1)], 5) != []
        with pytest.raises(JobNotFound):
            await store.jobs.events(unknown)
        with pytest.raises(JobNotFound):
            await store.jobs.append(FencingToken(unknown, 1), make_tokens("x"))
        with pytest.raises(JobNotFound):
            await store.jobs.release(FencingToken(unknown, 1), make_completed_outcome())
        with pytest.raises(JobNotFound):
            await store.jobs.answer(unknown, {})
        with pytest.raises(JobNotFound):
            await store.jobs.cancel(unknown, CANCELLED_OUTCOME)

    async def test_the_same_key_of_the_same_owner_is_the_same_job(self, store: Store) -> None:
        call = make_call(task="a")
        first = await store.jobs.accept(make_new_job(task="a", key="k", digest=compute_call_digest(call)))
        again = await store.jobs.accept(make_new_job(task="a", key="k", digest=compute_call_digest(call)))
        other = await store.jobs.accept(
            make_new_job(task="a", key="k", digest=compute_call_digest(call), owner="psk:bob")
        )
        assert (again.job.job_id, again.is_new) == (first.job.job_id, False)
        assert other.is_new
        with pytest.raises(Conflict):
            await store.jobs.accept(make_new_job(task="b", key="k", digest=compute_call_digest(make_call(task="b"))))
        assert len((await store.jobs.list(JobFilter())).jobs) == 2

    async def test_accepting_the_same_id_again_changes_nothing(self, store: Store) -> None:
        new = make_new_job()
        await store.jobs.accept(new)
        assert not (await store.jobs.accept(new)).is_new
        assert len((await store.jobs.list(JobFilter())).jobs) == 1

    async def test_the_same_id_twice_in_one_moment_is_one_job_and_its_neighbours_are_accepted(
        self, store: Store
    ) -> None:
        twice, refused = make_new_job(), make_new_job(priority=9)
        new_jobs = [
            twice,
            make_new_job(),
            make_new_job(key="k", digest="d"),
            refused,
            twice,
            make_new_job(key="k", digest="d"),
            make_new_job(),
        ]
        got = await asyncio.gather(*(store.jobs.accept(new) for new in new_jobs), return_exceptions=True)
        assert isinstance(got[3], BadInput)
        is_new = [not isinstance(each, BaseException) and each.is_new for each in got]
        assert (is_new[0] + is_new[4], is_new[2] + is_new[5], is_new[1], is_new[6]) == (1, 1, True, True)
        assert len((await store.jobs.list(JobFilter())).jobs) == 4
        for each in (twice, new_jobs[2]):
            assert [text for _, text in await read_event_log(store, each.job_id)] == []

    async def test_many_callers_with_one_key_get_one_job(self, store: Store) -> None:
        accepted = await asyncio.gather(*(store.jobs.accept(make_new_job(key="k", digest="d")) for _ in range(50)))
        assert len({each.job.job_id for each in accepted}) == 1
        assert sum(each.is_new for each in accepted) == 1

    async def test_one_refused_key_leaves_the_others_of_its_moment_alone(self, store: Store) -> None:
        await store.jobs.accept(make_new_job(key="k", digest="d"))
        accepts = [
            store.jobs.accept(make_new_job(key="k", digest="other") if at == 5 else make_new_job()) for at in range(10)
        ]
        got = await asyncio.gather(*accepts, return_exceptions=True)
        assert [isinstance(each, Conflict) for each in got] == [at == 5 for at in range(10)]
        assert len((await store.jobs.list(JobFilter())).jobs) == 10

    async def test_jobs_are_claimed_by_priority_then_time_then_age(self, store: Store) -> None:
        now = time.time()
        in_order = [
            make_new_job(task="urgent", priority=4),
            make_new_job(task="early", run_at=now - 100),
            make_new_job(task="first", run_at=now - 50),
            make_new_job(task="second", run_at=now - 50),
            make_new_job(task="low", priority=1, run_at=now - 1000),
        ]
        for new in (in_order[2], in_order[4], in_order[3], in_order[1], in_order[0]):
            await store.jobs.accept(new)
        claimed = [
            *await store.jobs.claim(make_claim_request(limit=2)),
            *await store.jobs.claim(make_claim_request(limit=9)),
        ]
        assert [job.call.input.task for job in claimed] == ["urgent", "early", "first", "second", "low"]
        assert await store.jobs.claim(make_claim_request()) == []

    async def test_waiting_jobs_of_an_owner_are_counted_up_to_a_bound(self, store: Store) -> None:
        for new in (make_new_job(), make_new_job(run_at=9e9), make_new_job(owner="psk:bob"), make_new_job(priority=4)):
            await store.jobs.accept(new)
        assert [await store.jobs.count_waiting("psk:alice", most) for most in (9, 3, 2)] == [3, 3, 2]
        [urgent] = await store.jobs.claim(make_claim_request())
        assert await store.jobs.count_waiting("psk:alice", 9) == 2
        await store.jobs.release(urgent.fencing_token, make_completed_outcome())
        assert await store.jobs.count_waiting("psk:alice", 9) == 2
        assert await store.jobs.count_waiting("psk:stranger", 9) == 0

    async def test_a_claimed_job_is_running_and_held(self, store: Store) -> None:
        new = make_new_job()
        await store.jobs.accept(new)
        [job] = await store.jobs.claim(make_claim_request("w7", lease=60, events=make_tokens("running")))
        assert (job.state, job.attempt, job.fence, job.events) == ("running", 1, 1, 1)
        assert job.lease is not None
        assert job.lease.worker == "w7"
        assert job.started_at is not None
        assert job.lease.until == pytest.approx(job.started_at + 60, abs=1)
        assert await store.jobs.get(job.job_id) == job
        assert await read_event_log(store, job.job_id) == [(1, "running")]

    async def test_a_job_is_not_claimed_before_its_time_nor_after_its_expiry(self, store: Store) -> None:
        now = time.time()
        await store.jobs.accept(make_new_job(run_at=now + 3600))
        await store.jobs.accept(make_new_job(expires_at=now - 1))
        soon = make_new_job(run_at=now + 0.2)
        await store.jobs.accept(soon)
        [job] = await wait_until(lambda: store.jobs.claim(make_claim_request(limit=9)))
        assert job.job_id == soon.job_id
        assert time.time() >= now + 0.2

    async def test_an_agent_never_has_more_jobs_than_its_limit(self, store: Store) -> None:
        for _ in range(5):
            await store.jobs.accept(make_new_job("slow"))
        for agent_id in ("free", "shut"):
            await store.jobs.accept(make_new_job(agent_id))
        limits = {"slow": 2, "shut": 0}
        first = await store.jobs.claim(make_claim_request(limit=9, limits=limits))
        assert sorted(job.agent_id for job in first) == ["free", "slow", "slow"]
        assert await store.jobs.claim(make_claim_request(limit=9, limits=limits)) == []
        assert await store.jobs.claim(make_claim_request(limit=9, limits={"shut": 0}, default_limit=2)) == []
        await store.jobs.release(
            next(job for job in first if job.agent_id == "slow").fencing_token, make_completed_outcome()
        )
        assert [job.agent_id for job in await store.jobs.claim(make_claim_request(limit=9, limits=limits))] == ["slow"]

    async def test_a_crowd_before_a_busy_agent_does_not_hide_the_others(self, store: Store) -> None:
        await asyncio.gather(*(store.jobs.accept(make_new_job("slow", priority=4)) for _ in range(400)))
        await store.jobs.accept(make_new_job("free", priority=1))
        claimed = await store.jobs.claim(make_claim_request(limit=3, limits={"slow": 1}))
        assert [job.agent_id for job in claimed] == ["slow", "free"]

    async def test_jobs_of_a_blocked_owner_wait_and_hide_no_others(self, store: Store) -> None:
        """Also if they are many, of the same agent, and more urgent."""
        crowd = (make_new_job("busy", owner="greedy", priority=4) for _ in range(400))
        await asyncio.gather(*(store.jobs.accept(each) for each in crowd))
        for agent_id in ("busy", "free"):
            await store.jobs.accept(make_new_job(agent_id, owner="honest", priority=1))
        for limits in ({}, {"free": 1}):
            request = make_claim_request(limit=1, blocked_owners=("greedy", "stranger"), limits=limits)
            claimed = await store.jobs.claim(request)
            assert [job.owner for job in claimed] == ["honest"]
        assert await store.jobs.claim(make_claim_request(limit=3, blocked_owners=("greedy",))) == []
        assert await store.jobs.claim(make_claim_request(limit=3, blocked_owners=("greedy",), limits={"free": 1})) == []
        assert [job.owner for job in await store.jobs.claim(make_claim_request(limit=3))] == ["greedy"] * 3

    async def test_many_claimers_get_each_job_once(self, store: Store) -> None:
        accepted = await asyncio.gather(*(store.jobs.accept(make_new_job()) for _ in range(200)))
        claims = await asyncio.gather(*(store.jobs.claim(make_claim_request(f"w{n}", limit=7)) for n in range(40)))
        got = [job.job_id for claim in claims for job in claim]
        assert sorted(got) == sorted(each.job.job_id for each in accepted)

    async def test_events_are_numbered_without_gaps_and_read_from_any_number(self, store: Store) -> None:
        job = await accept_and_claim(store)
        assert await store.jobs.append(job.fencing_token, make_tokens("a", "b")) == 2
        assert await store.jobs.append(job.fencing_token, make_tokens("c")) == 3
        assert await read_event_log(store, job.job_id) == [(1, "a"), (2, "b"), (3, "c")]
        assert await read_event_log(store, job.job_id, after=2) == [(3, "c")]
        assert await read_event_log(store, job.job_id, limit=1) == [(1, "a"), (2, "b"), (3, "c")]
        beyond = await store.jobs.events(job.job_id, after=99)
        assert (beyond.events, beyond.last, beyond.is_complete) == ((), 3, False)

    async def test_an_event_comes_back_as_it_went_in(self, store: Store) -> None:
        job = await accept_and_claim(store)
        event = Event("artifact", {"name": "ünïcode \u2028 \x00", "deep": [{"a": [1, 2.5, None, True]}]})
        await store.jobs.append(job.fencing_token, [event])
        page = await store.jobs.events(job.job_id)
        assert page.events[0].event == event
        assert page.state == "running"

    async def test_a_page_of_events_is_bounded_by_bytes_but_never_empty(self, store: Store) -> None:
        job = await accept_and_claim(store)
        await store.jobs.append(job.fencing_token, [token("x" * 5000) for _ in range(10)])
        page = await store.jobs.events(job.job_id, max_bytes=12_000)
        assert [line.number for line in page.events] == [1, 2]
        assert len((await store.jobs.events(job.job_id, after=2, max_bytes=10)).events) == 1

    async def test_writers_at_the_same_time_share_one_numbering(self, store: Store) -> None:
        job = await accept_and_claim(store)
        numbers = await asyncio.gather(*(store.jobs.append(job.fencing_token, make_tokens(str(n))) for n in range(100)))
        assert sorted(numbers) == list(range(1, 101))
        log = await read_event_log(store, job.job_id)
        assert [number for number, _ in log] == list(range(1, 101))
        assert {str(n): number for n, number in enumerate(numbers)} == {text: number for number, text in log}

    async def test_settling_ends_a_job_with_its_last_events(self, store: Store) -> None:
        job = await accept_and_claim(store)
        ended = await store.jobs.release(job.fencing_token, make_completed_outcome("42", "done"))
        assert (ended.state, ended.lease, ended.events) == ("completed", None, 1)
        kept = await store.jobs.get(job.job_id)
        assert kept is not None
        assert kept.result == Result(data={"answer": "42"})
        assert kept.ended_at is not None
        page = await store.jobs.events(job.job_id)
        assert page.is_complete
        assert page.events[-1].event == token("done")

    async def test_a_failed_job_keeps_its_error(self, store: Store) -> None:
        job = await accept_and_claim(store)
        error = JobError(code="TIMEOUT", message="No answer within 1 s", details={"agent_id": "percy"})
        await store.jobs.release(job.fencing_token, JobOutcome(state="failed", error=error))
        kept = await store.jobs.get(job.job_id)
        assert kept is not None
        assert (kept.state, kept.error) == ("failed", error)
        page = await store.jobs.list(JobFilter())
        assert page.jobs[0].error == error

    async def test_what_has_ended_cannot_be_written_to(self, store: Store) -> None:
        job = await accept_and_claim(store)
        await store.jobs.release(job.fencing_token, make_completed_outcome())
        with pytest.raises(LeaseLost):
            await store.jobs.append(job.fencing_token, make_tokens("late"))
        with pytest.raises(LeaseLost):
            await store.jobs.release(job.fencing_token, make_completed_outcome("other"))
        with pytest.raises(Conflict):
            await store.jobs.answer(job.job_id, {})
        kept = await store.jobs.get(job.job_id)
        assert kept is not None
        assert kept.result == Result(data={"answer": "42"})

    async def test_follow_ups_are_accepted_with_the_end_or_not_at_all(self, store: Store) -> None:
        await store.jobs.accept(make_new_job("x", key="taken", digest="1", run_at=9e9))
        job = await accept_and_claim(store)
        hook = make_new_job("webhook", key=f"hook:{job.job_id}", digest="h")
        clash = make_new_job("webhook", key="taken", digest="2")
        with pytest.raises(Conflict):
            await store.jobs.release(
                job.fencing_token, JobOutcome(state="completed", events=make_tokens("end"), follow_ups=(hook, clash))
            )  # fmt: skip
        assert await store.jobs.get(hook.job_id) is None
        still = await store.jobs.get(job.job_id)
        assert still is not None
        assert (still.state, still.events) == ("running", 0)
        await store.jobs.release(job.fencing_token, JobOutcome(state="completed", follow_ups=(hook,)))
        assert await store.jobs.get(hook.job_id) is not None

    @pytest.mark.parametrize("state", ["running"])
    async def test_a_state_that_cannot_follow_is_refused(self, store: Store, state: JobState) -> None:
        job = await accept_and_claim(store)
        with pytest.raises(Conflict):
            await store.jobs.release(job.fencing_token, JobOutcome(state=state))

    async def test_a_released_job_is_claimed_again_later_under_a_new_fence(self, store: Store) -> None:
        job = await accept_and_claim(store)
        await store.jobs.release(job.fencing_token, JobOutcome(state="queued", run_at=time.time() + 3600))
        assert await store.jobs.claim(make_claim_request()) == []
        again = await accept_and_claim(store, make_new_job())
        await store.jobs.release(again.fencing_token, JobOutcome(state="queued", run_at=time.time() - 1))
        [second] = await store.jobs.claim(make_claim_request())
        assert (second.job_id, second.attempt, second.fence) == (again.job_id, 2, 2)
        with pytest.raises(LeaseLost):
            await store.jobs.append(again.fencing_token, make_tokens("from the past"))

    async def test_a_job_that_was_put_off_has_all_its_attempts_left(self, store: Store) -> None:
        job = await accept_and_claim(store)
        await store.jobs.release(
            job.fencing_token, JobOutcome(state="queued", run_at=time.time() - 1, is_postponed=True)
        )
        put_off = await store.jobs.get(job.job_id)
        assert put_off is not None
        assert put_off.attempt == 0
        [second] = await store.jobs.claim(make_claim_request())
        assert (second.attempt, second.fence) == (1, 2)

    async def test_a_job_that_waits_for_an_answer_holds_no_worker_and_goes_on_with_it(self, store: Store) -> None:
        job = await accept_and_claim(store)
        question = {"message": "Which one?", "continuation": "c1"}
        await store.jobs.release(
            job.fencing_token, JobOutcome(state="input_required", question=question, events=make_tokens("asked"))
        )
        parked = await store.jobs.get(job.job_id)
        assert parked is not None
        assert (parked.state, parked.question, parked.lease) == ("input_required", question, None)
        assert await store.jobs.claim(make_claim_request()) == []
        answered = await store.jobs.answer(job.job_id, {"choice": 1}, make_tokens("answered"))
        assert answered.state == "queued"
        with pytest.raises(Conflict):
            await store.jobs.answer(job.job_id, {"choice": 2})
        [going] = await store.jobs.claim(make_claim_request())
        assert (going.question, going.answer, going.attempt) == (question, {"choice": 1}, 2)
        await store.jobs.release(going.fencing_token, make_completed_outcome())
        assert await read_event_log(store, job.job_id) == [(1, "asked"), (2, "answered")]

    async def test_a_part_of_an_answer_is_kept_while_the_job_waits_for_the_rest(self, store: Store) -> None:
        job = await accept_and_claim(store)
        question = {"message": "Which two?", "continuation": "c1"}
        await store.jobs.release(job.fencing_token, JobOutcome(state="input_required", question=question))
        parked = await store.jobs.get(job.job_id)
        assert parked is not None
        still = await store.jobs.answer(job.job_id, {"one": 1}, part_of=parked.version)
        assert (still.state, still.version) == ("input_required", parked.version + 1)
        with pytest.raises(Conflict):
            await store.jobs.answer(job.job_id, {"two": 2}, part_of=parked.version)
        kept = await store.jobs.get(job.job_id)
        assert kept is not None
        assert (kept.state, kept.question, kept.answer) == ("input_required", question, {"one": 1})
        assert await store.jobs.claim(make_claim_request()) == []
        await store.jobs.answer(job.job_id, {"one": 1, "two": 2})
        [going] = await store.jobs.claim(make_claim_request())
        assert going.answer == {"one": 1, "two": 2}

    async def test_cancelling_ends_a_waiting_job_at_once(self, store: Store) -> None:
        new = make_new_job()
        await store.jobs.accept(new)
        first = await store.jobs.cancel(new.job_id, CANCELLED_OUTCOME)
        again = await store.jobs.cancel(new.job_id, CANCELLED_OUTCOME)
        assert (first.state, again.state, again.events) == ("cancelled", "cancelled", 1)
        assert await store.jobs.claim(make_claim_request()) == []

    async def test_cancelling_asks_the_holder_of_a_running_job(self, store: Store) -> None:
        job = await accept_and_claim(store)
        for _ in range(2):
            summary = await store.jobs.cancel(job.job_id, CANCELLED_OUTCOME)
            assert (summary.state, summary.cancel_requested, summary.events) == ("running", True, 0)
        [pulse] = await store.jobs.heartbeat([job.fencing_token], 60)
        assert pulse.is_held
        assert pulse.cancel_requested
        assert (await store.jobs.release(job.fencing_token, CANCELLED_OUTCOME)).state == "cancelled"

    async def test_a_job_left_just_as_it_was_cancelled_is_taken_over(self, store: Store) -> None:
        job = await accept_and_claim(store)
        await store.jobs.cancel(job.job_id, CANCELLED_OUTCOME)
        left = await store.jobs.release(job.fencing_token, JobOutcome(state="queued", run_at=time.time() - 1))
        assert left.cancel_requested
        assert await store.jobs.claim(make_claim_request()) == []
        [mine] = await store.jobs.take_over(HoldRequest(worker="w2", lease=60))
        assert decide_after_takeover(mine, may_repeat=True, now=time.time()).state == "cancelled"
        again = await accept_and_claim(store)
        await store.jobs.cancel(again.job_id, CANCELLED_OUTCOME)
        await store.jobs.release(again.fencing_token, JobOutcome(state="input_required", question={}))
        assert (await store.jobs.cancel(again.job_id, CANCELLED_OUTCOME)).state == "cancelled"

    async def test_cancelling_a_job_that_waits_for_an_answer_or_has_ended(self, store: Store) -> None:
        job = await accept_and_claim(store)
        await store.jobs.release(job.fencing_token, JobOutcome(state="input_required", question={"q": 1}))
        assert (await store.jobs.cancel(job.job_id, CANCELLED_OUTCOME)).state == "cancelled"
        done = await accept_and_claim(store)
        await store.jobs.release(done.fencing_token, make_completed_outcome())
        assert (await store.jobs.cancel(done.job_id, CANCELLED_OUTCOME)).state == "completed"

    async def test_a_heartbeat_renews_the_lease_and_tells_a_worker_that_lost_its_own(self, store: Store) -> None:
        kept, lost = await accept_and_claim(store), await accept_and_claim(store, lease=0)
        await store.jobs.take_over(HoldRequest(worker="w2", lease=60))
        pulses = await store.jobs.heartbeat([lost.fencing_token, kept.fencing_token], 3600)
        assert [(pulse.job_id, pulse.is_held) for pulse in pulses] == [(lost.job_id, False), (kept.job_id, True)]
        now = await store.jobs.get(kept.job_id)
        assert now is not None
        assert now.lease is not None
        assert now.lease.until > time.time() + 3000

    async def test_a_job_whose_lease_ran_out_is_taken_over_once_and_its_old_holder_is_fenced(
        self, store: Store
    ) -> None:
        job = await accept_and_claim(store, lease=0)
        taken = await asyncio.gather(*(store.jobs.take_over(HoldRequest(worker=f"w{n}", lease=60)) for n in range(10)))
        [mine] = [each for batch in taken for each in batch]
        assert (mine.job_id, mine.fence, mine.attempt) == (job.job_id, job.fence + 1, 1)
        with pytest.raises(LeaseLost):
            await store.jobs.append(job.fencing_token, make_tokens("stalled"))
        with pytest.raises(LeaseLost):
            await store.jobs.release(job.fencing_token, make_completed_outcome("stalled"))
        await store.jobs.release(mine.fencing_token, decide_after_takeover(mine, may_repeat=True, now=time.time()))
        [again] = await store.jobs.claim(make_claim_request())
        assert again.attempt == 2
        assert await read_event_log(store, job.job_id) == []

    async def test_a_live_lease_is_left_alone(self, store: Store) -> None:
        await accept_and_claim(store, lease=60)
        assert await store.jobs.take_over(HoldRequest(worker="w2", lease=60)) == []

    async def test_an_unbegun_or_unanswered_job_whose_time_is_over_is_taken_over(self, store: Store) -> None:
        parked = await accept_and_claim(store, make_new_job(expires_at=time.time() + 0.3))
        await store.jobs.release(parked.fencing_token, JobOutcome(state="input_required", question={}))
        late = make_new_job(expires_at=time.time() - 1)
        await store.jobs.accept(late)
        ended: set[str] = set()

        async def both() -> bool:
            for job in await store.jobs.take_over(HoldRequest(worker="w", lease=60)):
                outcome = decide_after_takeover(job, may_repeat=True, now=time.time())
                await store.jobs.release(job.fencing_token, outcome)
                ended.add(f"{job.job_id}:{outcome.state}")
            return len(ended) == 2

        await wait_until(both)
        assert ended == {f"{parked.job_id}:timeout", f"{late.job_id}:timeout"}

    async def test_a_call_that_already_runs_becomes_a_job_held_by_its_worker(self, store: Store) -> None:
        new = make_new_job(hold=HoldRequest(worker="here", lease=60), events=make_tokens("so far"))
        job = (await store.jobs.accept(new)).job
        assert (job.state, job.attempt, job.fence, job.events) == ("running", 1, 1, 1)
        assert await store.jobs.claim(make_claim_request()) == []
        assert await store.jobs.append(job.fencing_token, make_tokens("more")) == 2
        await store.jobs.release(job.fencing_token, make_completed_outcome())
        assert await read_event_log(store, job.job_id) == [(1, "so far"), (2, "more")]

    async def test_listing_goes_through_all_jobs_newest_first_page_by_page(self, store: Store) -> None:
        accepted = [(await store.jobs.accept(make_new_job())).job.job_id for _ in range(25)]
        seen: list[str] = []
        cursor = None
        while True:
            page = await store.jobs.list(JobFilter(), cursor=cursor, limit=10)
            seen += [job.job_id for job in page.jobs]
            if page.cursor is None:
                break
            cursor = page.cursor
        assert seen == accepted[::-1]

    async def test_listing_narrows_by_owner_agent_and_state(self, store: Store) -> None:
        done = await accept_and_claim(store, make_new_job("a"))
        await store.jobs.release(done.fencing_token, make_completed_outcome())
        await store.jobs.accept(make_new_job("a", owner="psk:bob"))
        await store.jobs.accept(make_new_job("b"))

        async def count(**filters: object) -> int:
            return len((await store.jobs.list(JobFilter(**filters))).jobs)  # type: ignore[arg-type]

        assert await count() == 3
        assert await count(owner="psk:alice") == 2
        assert await count(owner="psk:bob") == 1
        assert await count(agent_id="a") == 2
        assert await count(states=("completed",)) == 1
        assert await count(states=("queued", "completed")) == 3
        assert await count(owner="psk:alice", agent_id="b", states=("queued",)) == 1
        assert await count(states=()) == 0

    @pytest.mark.parametrize("cursor", ["", "x" * 999, "drop table jobs;--", "\x00", "ü"])
    async def test_a_cursor_that_was_never_given_is_refused_or_finds_nothing_wrong(
        self, store: Store, cursor: str
    ) -> None:
        await store.jobs.accept(make_new_job())
        try:
            page = await store.jobs.list(JobFilter(), cursor=cursor)
        except BadInput:
            return
        assert page.cursor is None

    async def test_pruning_removes_by_age_by_own_retention_and_by_size(self, store: Store) -> None:
        async def ended(**about: Any) -> str:
            job = await accept_and_claim(store, make_new_job(task="x" * 1000, **about))
            await store.jobs.append(job.fencing_token, make_tokens("y"))
            await store.jobs.release(job.fencing_token, make_completed_outcome())
            return job.job_id

        waiting = (await store.jobs.accept(make_new_job(run_at=9e9))).job.job_id
        first = await ended(retention=0.0, key="k", digest="d")
        second, third = await ended(), await ended(retention=1e6)
        assert (await store.jobs.prune(RetentionPolicy(max_age=1e6))).jobs == 1
        assert await store.jobs.get(first) is None
        assert (await store.jobs.accept(make_new_job(key="k", digest="other", run_at=9e9))).is_new
        size = (await store.jobs.get(second) or pytest.fail("gone")).size
        assert size > 1000
        assert (await store.jobs.prune(RetentionPolicy(max_bytes=size + size // 2))).jobs == 1
        assert await store.jobs.get(second) is None
        with pytest.raises(JobNotFound):
            await store.jobs.events(second)
        assert (await store.jobs.prune(RetentionPolicy(max_age=0.0))).jobs == 0
        assert await store.jobs.get(third) is not None
        assert (await store.jobs.prune(RetentionPolicy(max_bytes=0))).jobs == 1
        assert await store.jobs.get(waiting) is not None

    async def test_pruning_stops_at_its_limit_and_says_so(self, store: Store) -> None:
        for _ in range(5):
            job = await accept_and_claim(store)
            await store.jobs.release(job.fencing_token, make_completed_outcome())
        first = await store.jobs.prune(RetentionPolicy(max_age=0.0), limit=3)
        second = await store.jobs.prune(RetentionPolicy(max_age=0.0), limit=3)
        assert (first.jobs, first.is_done, second.jobs, second.is_done) == (3, False, 2, True)

    async def test_a_watcher_hears_of_new_events_and_of_the_end(self, store: Store) -> None:
        job = await accept_and_claim(store)
        with store.notices.watch(job_topic(job.job_id)) as bell:
            await store.jobs.append(job.fencing_token, make_tokens("a"))
            assert await bell.wait(TIMEOUT)
            await store.jobs.release(job.fencing_token, make_completed_outcome())
            assert await bell.wait(TIMEOUT)

    async def test_a_watcher_hears_of_new_work(self, store: Store) -> None:
        with store.notices.watch(WORK_TOPIC) as bell:
            waiting = asyncio.create_task(bell.wait(TIMEOUT))
            await store.jobs.accept(make_new_job())
            assert await waiting

    async def test_a_claim_after_the_notice_of_new_work_gets_it(self, store: Store) -> None:
        with store.notices.watch(WORK_TOPIC) as bell:
            accepting = asyncio.create_task(store.jobs.accept(new := make_new_job()))
            claimed: list[str] = []
            while not claimed:
                assert await bell.wait(TIMEOUT)  # it may ring for nothing
                claimed = [job.job_id for job in await store.jobs.claim(make_claim_request())]
            assert claimed == [new.job_id]
            assert (await accepting).is_new

    async def test_a_reader_that_follows_a_log_sees_every_event_once(self, store: Store) -> None:
        job = await accept_and_claim(store)

        async def follow() -> list[int]:
            seen: list[int] = []
            with store.notices.watch(job_topic(job.job_id)) as bell:
                while True:
                    page = await store.jobs.events(job.job_id, after=len(seen), limit=7)
                    seen += [line.number for line in page.events]
                    if page.is_complete:
                        return seen
                    if not page.events:
                        assert await bell.wait(TIMEOUT)

        readers = [asyncio.create_task(follow()) for _ in range(5)]
        for n in range(50):
            await store.jobs.append(job.fencing_token, make_tokens(str(n), "x"))
        await store.jobs.release(job.fencing_token, make_completed_outcome("42", "end"))
        assert await asyncio.gather(*readers) == [list(range(1, 102))] * 5

    async def test_the_status_counts_jobs_by_state(self, store: Store) -> None:
        await accept_and_claim(store)
        await store.jobs.accept(make_new_job())
        assert (await store.status()).jobs == {"running": 1, "queued": 1}
