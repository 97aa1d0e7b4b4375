"""The contract suite of a runtime. Needs the extra `testing`: pip install 'a2a-fabric[testing]'.

class TestMyRuntime(RuntimeContract):
    @pytest_asyncio.fixture
    async def case(self) -> AsyncIterator[RuntimeCase]:
        async with start_an_agent() as manifest:
            runtime = build(manifest, context)
            yield RuntimeCase(runtime=runtime, manifest=manifest, call=make_call("mine", "echo"))
            await runtime.aclose()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import pytest

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call, ignore_event
from a2a_fabric.core.errors import AgentOffline, CallTimeout, FabricError
from a2a_fabric.core.ports import EnforcesDeadline, Runtime
from a2a_fabric.core.result import EVENT_KINDS, Event, Result
from a2a_fabric.testing.values import TIMEOUT, wait_until

_CALLS_AT_A_TIME = 5
_SHORT_TIMEOUT_MS = 300


@dataclass(frozen=True, kw_only=True)
class RuntimeCase:
    """A runtime with a real agent behind it, and calls that show what it does."""

    runtime: Runtime
    manifest: Manifest
    call: Call  # answered at once
    answer: dict[str, Any] | None = None  # what it is answered with, if that is always the same
    stream_call: Call | None = None  # answered with events; `call` if unset
    refused_call: Call | None = None  # the agent says no to it
    slow_call: Call | None = None  # would take the agent longer than TIMEOUT
    is_stopped: Callable[[], bool] | None = None  # whether the agent has stopped working on `slow_call`
    absent: Runtime | None = None  # the same kind of runtime, with nothing at the other end


class EmitterBroke(Exception):
    """Raised by an emitter of this suite: the caller has left."""


@pytest.mark.asyncio
class RuntimeContract:
    """What every runtime promises. Subclass it, and add a fixture `case`."""

    async def test_calls_are_answered_alone_and_at_the_same_time(self, case: RuntimeCase) -> None:
        async with asyncio.timeout(TIMEOUT):
            results = [await case.runtime(case.call, ignore_event)]
            results += await asyncio.gather(*(case.runtime(case.call, ignore_event) for _ in range(_CALLS_AT_A_TIME)))
        for result in results:
            assert isinstance(result, Result)
            assert msgspec.json.encode(result.data)
            assert case.answer is None or result.data == case.answer

    async def test_events_are_of_known_kinds_and_end_with_the_result(self, case: RuntimeCase) -> None:
        events: list[Event] = []

        async def emit(event: Event) -> None:
            events.append(event)

        async with asyncio.timeout(TIMEOUT):
            await case.runtime(_make_streaming(case.stream_call or case.call), emit)
        count = len(events)
        await asyncio.sleep(0.05)
        assert {event.kind for event in events} <= set(EVENT_KINDS)
        assert len(events) == count

    async def test_the_error_of_an_emitter_ends_the_call_and_comes_out_as_it_is(self, case: RuntimeCase) -> None:
        is_called = False

        async def emit(event: Event) -> None:
            nonlocal is_called
            is_called = True
            raise EmitterBroke

        try:
            async with asyncio.timeout(TIMEOUT):
                await case.runtime(_make_streaming(case.stream_call or case.call), emit)
        except EmitterBroke:
            return
        assert not is_called

    async def test_a_refusal_is_a_fabric_error_and_no_failure_of_the_runtime(self, case: RuntimeCase) -> None:
        if case.refused_call is None:
            pytest.skip("the case has no refused_call")
        with pytest.raises(FabricError) as raised:
            await case.runtime(case.refused_call, ignore_event)
        assert not isinstance(raised.value, AgentOffline)
        assert raised.value.message.strip()
        assert await case.runtime(case.call, ignore_event)

    async def test_cancelling_a_call_stops_the_agent_and_leaves_the_runtime_usable(self, case: RuntimeCase) -> None:
        if case.slow_call is None:
            pytest.skip("the case has no slow_call")
        task = asyncio.ensure_future(case.runtime(case.slow_call, ignore_event))
        await asyncio.wait([task], timeout=0.3)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task], timeout=TIMEOUT)
        assert task.cancelled()
        if (is_stopped := case.is_stopped) is not None:

            async def check() -> bool:
                return is_stopped()

            await wait_until(check)
        async with asyncio.timeout(TIMEOUT):
            assert await case.runtime(case.call, ignore_event)

    async def test_a_runtime_that_says_so_enforces_the_deadline(self, case: RuntimeCase) -> None:
        if case.slow_call is None or not isinstance(case.runtime, EnforcesDeadline):
            pytest.skip("the node enforces the deadline of this runtime")
        await case.runtime(case.call, ignore_event)  # an agent that must be started first may need longer
        target = msgspec.structs.replace(case.slow_call.target, timeout_ms=_SHORT_TIMEOUT_MS)
        with pytest.raises(CallTimeout):
            async with asyncio.timeout(TIMEOUT):
                await case.runtime(msgspec.structs.replace(case.slow_call, target=target), ignore_event)

    async def test_health_is_a_status_and_the_description_keeps_what_is_declared(self, case: RuntimeCase) -> None:
        async with asyncio.timeout(TIMEOUT):
            assert await case.runtime.health() in get_args(Status)
            described = await case.runtime.describe()
        assert described.agent_id == case.manifest.agent_id
        assert described.endpoint == case.manifest.endpoint
        assert not case.manifest.description or described.description == case.manifest.description
        declared = {capability.name for capability in case.manifest.capabilities}
        assert declared <= {capability.name for capability in described.capabilities}

    async def test_an_absent_agent_is_offline(self, case: RuntimeCase) -> None:
        if case.absent is None:
            pytest.skip("the case has no absent agent")
        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(AgentOffline):
                await case.absent(case.call, ignore_event)
            await case.absent.aclose()

    async def test_a_runtime_is_closed_twice_without_an_error(self, case: RuntimeCase) -> None:
        async with asyncio.timeout(TIMEOUT):
            await case.runtime.aclose()
            await case.runtime.aclose()


def _make_streaming(call: Call) -> Call:
    return msgspec.structs.replace(call, response=msgspec.structs.replace(call.response, stream=True))
