"""Spans of a call, made out of its recording."""

from __future__ import annotations

import pytest

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Input, Principal, Target
from a2a_fabric.core.errors import UpstreamFailed
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.recording import CallRecording
from a2a_fabric.core.result import Result
from a2a_fabric.core.spans import CallRecord
from a2a_fabric.telemetry.spans import build_record

AGENT = Manifest(agent_id="echo", runtime="http", endpoint={"transport": "http", "uri": "http://127.0.0.1:1/"})
CALLER = Principal(mode="psk", principal_id="ann", scp=("*.*",))


def record_call(*, fails: bool = False, caller: Principal = CALLER, seconds: float = 0.0123456) -> CallRecord:
    target = Target(agent_id="echo", capability="reason")
    recording = CallRecording(Call(trace=new_trace(), auth=caller, target=target, input=Input()))
    recording.begin_attempt(AGENT, "primary")
    recording.enter_runtime()
    error = UpstreamFailed("It broke")
    recording.end_attempt(error if fails else None)
    if fails:
        recording.fail(error, error.code, error.message, seconds)
    else:
        recording.complete(Result(data={}), seconds)
    return build_record(recording, "node-1")


def test_what_calls_have_in_common_is_shared_and_what_one_call_has_alone_is_not() -> None:
    before, failed, after = record_call(), record_call(fails=True), record_call()

    assert [dict(span.attributes) for span in after.spans] == [dict(span.attributes) for span in before.spans]
    assert [span.attributes.get("error.type") for span in failed.spans] == ["UPSTREAM_ERROR"] * 3
    assert after.spans[2].attributes is before.spans[2].attributes
    assert after.spans[2].name == "http echo.reason"


def test_a_span_names_the_authority_of_its_own_caller() -> None:
    plain = record_call(caller=Principal(mode="psk", principal_id="bob")).spans[0].attributes
    limited = record_call().spans[0].attributes

    assert (plain["enduser.id"], "fabric.scopes" in plain) == ("bob", False)
    assert (limited["enduser.id"], limited["fabric.scopes"]) == ("ann", ["*.*"])


@pytest.mark.parametrize(("seconds", "ms"), [(0.0, 0.0), (0.0123456, 12.346), (0.0004999, 0.5), (3600.25, 3600250.0)])
def test_durations_have_three_digits_after_the_point(seconds: float, ms: float) -> None:
    record = record_call(seconds=seconds)

    assert record.call is not None
    assert (record.call.duration_ms, record.spans[0].duration_ms) == (ms, ms)
