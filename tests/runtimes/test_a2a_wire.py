"""What A2A agents say as raw JSON: every version's form, and the many ways to get it wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    BadInput,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.result import Part
from a2a_fabric.protocols.a2a.decode import parse_reply, parse_rpc_reply
from a2a_fabric.protocols.a2a.errors import upstream_reason
from a2a_fabric.protocols.a2a.models import (
    A2AArtifact,
    A2AMessage,
    A2ATask,
    A2ATaskStatus,
    A2AUpdate,
    Dialect,
    TaskArtifactUpdate,
    TaskStatusUpdate,
    WirePart,
    parse_parts,
    parse_state,
    render_part,
)
from a2a_fabric.runtimes.a2a.client import error_from_http
from a2a_fabric.runtimes.a2a.reply_buffer import ReplyBuffer, result_from_parts
from tests.matrix.agents.kind import CONTENT
from tests.profiles import examples

DIALECTS: list[Dialect] = ["1.0", "0.3", "0.3 proto"]
HI = Part(kind="text", text="hi")


def rpc(result: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "result": result})


def said(result: Any) -> A2AUpdate:
    return parse_rpc_reply(rpc(result), "0.3" if "kind" in result else "1.0")


@pytest.mark.parametrize(
    "result",
    [
        {"message": {"messageId": "m", "role": "ROLE_AGENT", "contextId": "c", "parts": [{"text": "hi"}]}},
        {"kind": "message", "role": "agent", "contextId": "c", "parts": [{"kind": "text", "text": "hi"}]},
        {"msg": {"message_id": "m", "role": "ROLE_AGENT", "context_id": "c", "content": [{"text": "hi"}]}},
        {"message": {"parts": [{"text": "hi"}, {"kind": "hologram"}], "contextId": "c", "role": 2, "extra": []}},
    ],
)  # fmt: skip
def test_a_message_is_a_message_in_every_form(result: dict[str, Any]) -> None:
    message = said(result)
    assert isinstance(message, A2AMessage)
    assert (message.parts, message.context_id) == ((HI,), "c")


@pytest.mark.parametrize(
    "task",
    [
        {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING", "timestamp": "2026-01-01T00:00:00"}},
        {"id": "t", "contextId": "c", "status": {"state": "working", "message": None}, "artifacts": None},
        {"id": "t", "context_id": "c", "status": {"state": "Working", "timestamp": 7}, "history": None},
        {"id": "t", "contextId": "c", "status": "working"},
        {"id": "t", "contextId": "c", "status": {"state": "working"}, "artifacts": "none", "history": {}},
    ],
)
def test_a_task_is_a_task_however_carelessly_it_is_written(task: dict[str, Any]) -> None:
    expected = A2ATask(id="t", context_id="c", status=A2ATaskStatus(state="working"))
    assert said({"task": task}) == said({"kind": "task", **task}) == expected
    assert parse_reply(msgspec.json.encode(task), "1.0") == expected


def test_ids_may_be_numbers() -> None:
    assert said({"task": {"id": 7, "contextId": 8, "status": {"state": "completed"}}}) == A2ATask(
        id="7", context_id="8", status=A2ATaskStatus(state="completed")
    )


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("TASK_STATE_INPUT_REQUIRED", "input-required"),
        ("input-required", "input-required"),
        ("inputRequired", "input-required"),
        ("TASK_STATE_CANCELLED", "canceled"),
        ("canceled", "canceled"),
        ("TASK_STATE_UNSPECIFIED", "unknown"),
        ("pondering", "unknown"),
        (None, "unknown"),
        (4, "unknown"),
    ],
)
def test_states_are_known_by_all_their_names(word: Any, state: str) -> None:
    assert parse_state(word) == state


def test_news_of_a_task_in_both_forms() -> None:
    status = {"taskId": "t", "contextId": "c", "status": {"state": "failed", "message": {"parts": [{"text": "hi"}]}}}
    update = said({"statusUpdate": status})
    assert isinstance(update, TaskStatusUpdate)
    assert (update.task_id, update.context_id, update.is_last) == ("t", "c", True)
    assert (update.status.state, update.status.parts) == ("failed", (HI,))
    assert said({"kind": "status-update", "final": True, **status}) == update
    piece = {"taskId": "t", "artifact": {"artifactId": "a", "name": "n", "parts": [{"text": "hi"}]}, "append": True}
    made = TaskArtifactUpdate(task_id="t", artifact=A2AArtifact(id="a", name="n", parts=(HI,)), append=True)
    assert said({"artifactUpdate": piece}) == said({"kind": "artifact-update", **piece}) == made


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe", b'{"result": {}}', b'{"result": 7}', b"[" * 100_000]
)
def test_what_is_no_answer_is_a_failure(body: bytes) -> None:
    for read in (parse_rpc_reply, parse_reply):
        with pytest.raises(UpstreamFailed, match="answer"):
            read(body, "1.0")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["task", "message", "statusUpdate", "artifactUpdate", "status", "state", "parts", "artifact", "artifacts",
             "id", "text", "data", "file", "raw", "metadata", "error", "code", "result", "history", "kind"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(json_values)
def test_whatever_an_agent_says_is_understood_or_refused(value: Any) -> None:
    bare, wrapped = msgspec.json.encode(value), msgspec.json.encode({"result": value})
    for read, text in ((parse_rpc_reply, wrapped), (parse_rpc_reply, bare), (parse_reply, bare)):
        for dialect in DIALECTS:
            try:
                heard = read(text, dialect)
            except FabricError:
                continue
            buffer = ReplyBuffer(1_000_000)
            buffer.add(heard)
            msgspec.json.encode(result_from_parts(buffer.parts))


def test_errors_of_every_form_become_ours() -> None:
    def number(code: Any, **more: Any) -> bytes:
        return msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no", **more}})

    for body, kind, reason in (
        (number(-32602, data="too short"), BadInput, "INVALID_PARAMS"),
        (number(-32005), BadInput, "CONTENT_TYPE_NOT_SUPPORTED"),
        (number(-32001), UpstreamRefused, "TASK_NOT_FOUND"),
        (number(-32603, data=[{"reason": "x"}]), UpstreamRefused, "INTERNAL_ERROR"),
        (number("odd"), UpstreamRefused, "JSON-RPC"),
    ):
        with pytest.raises(kind, match="no") as caught:
            parse_rpc_reply(body, "1.0")
        assert upstream_reason(caught.value) == reason


def test_statuses_of_http_say_who_is_to_blame() -> None:
    detailed = {"error": {"message": "gone", "status": "NOT_FOUND", "details": [{"reason": "TASK_NOT_FOUND"}]}}
    named = {"type": "ContentTypeNotSupportedError", "message": "no pictures"}
    cases: list[tuple[int, Any, type[FabricError], str]] = [
        (404, detailed, UpstreamRefused, "TASK_NOT_FOUND"),
        (400, named, BadInput, "CONTENT_TYPE_NOT_SUPPORTED"),
        (422, {"message": "a number, please"}, BadInput, ""),
        (401, {"detail": "who are you?"}, UpstreamRefused, ""),
        (404, "<html>", UpstreamRefused, "NOT_FOUND"),
        (429, {}, AgentBusy, ""),
        (502, {}, UpstreamInterrupted, ""),
        (503, detailed, AgentOffline, "TASK_NOT_FOUND"),
        (301, {}, UpstreamFailed, ""),
        (500, {}, UpstreamFailed, ""),
        (500, detailed, UpstreamRefused, "TASK_NOT_FOUND"),
    ]
    for status, body, kind, reason in cases:
        error = error_from_http(status, msgspec.json.encode(body))
        assert (type(error), upstream_reason(error)) == (kind, reason), status


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "part",
    [
        *CONTENT,
        Part(kind="text", text="# hi", mime_type="text/markdown"),
        Part(kind="file", url="http://127.0.0.1/x", name="x"),
        Part(kind="json", data=None),
        Part(kind="json", data="words"),
        Part(kind="json", data={"data": {"deep": 1}}, meta={"a": 1}),
        Part(kind="file", blob="", mime_type="application/x-empty"),
    ],
    ids=lambda part: part.kind,
)
def test_parts_survive_every_dialect(part: Part, dialect: Dialect) -> None:
    wire = msgspec.json.decode(msgspec.json.encode(render_part(part, dialect)), type=WirePart)
    if part.blob == "" and dialect != "1.0":
        assert parse_parts([wire], dialect) == ()  # nothing is nothing
    else:
        assert parse_parts([wire], dialect) == (part,)


def test_bytes_are_read_however_often_they_were_encoded() -> None:
    for blob in ("AAEC/w==", "QUFFQy93PT0="):
        [part] = parse_parts([WirePart(file={"fileWithBytes": blob, "mimeType": "image/png"})], "0.3 proto")
        assert (part.kind, part.blob) == ("image", "AAEC/w==")
    [part] = parse_parts([WirePart(raw="AAEC_w")], "1.0")
    assert part.blob == "AAEC/w=="


def test_data_is_one_object_and_what_it_would_lose_stays_in_parts() -> None:
    def of(*data: Any) -> Any:
        return result_from_parts((HI, *(Part(kind="json", data=each) for each in data)))

    assert (of({"a": 1}, {"b": 2}).data, of({"a": 1}, {"b": 2}).parts) == ({"a": 1, "b": 2, "answer": "hi"}, ())
    assert (of([1]).data, of([1], 7).data) == ({"result": [1], "answer": "hi"}, {"result": [[1], 7], "answer": "hi"})
    for losing in (of({"a": 1}, {"a": 2}), of({"answer": "bye"}), of({"result": 1}, [2])):
        assert len(losing.parts) > 1
