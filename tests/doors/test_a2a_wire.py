"""The A2A door on the wire: cards, versions, ids, errors and what clients of either version put there."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from a2a.client import A2ACardResolver
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from a2a_fabric.demo.percy import percy as demo_percy
from tests.doors.a2a_agents import adder, percy
from tests.doors.a2a_clients import KEY, frames, message, raw, rpc
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

CARD = "/agents/percy/.well-known/agent-card.json"
NEW = {"A2A-Version": "1.0"}
DOORS = [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "a2a"}]
KEYS = [
    {"id": "bob", "key": "the-key-of-bob"},
    {"id": "guest", "key": "the-key-of-a-guest", "trust": "public"},
    {"id": "dave", "key": "the-key-of-dave", "scopes": ["capability:say"]},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), adder(), config={"doors": DOORS, "auth": {"keys": KEYS}}) as node:
        yield node


def old(*parts: str, **more: Any) -> dict[str, Any]:
    said = message(**more)
    return {**said, "kind": "message", "role": "user", "parts": [{"kind": "text", "text": part} for part in parts]}


@requirement("000-23")
async def test_a_card_tells_everything_to_clients_of_both_versions(node: Node) -> None:
    reply = await node.send("GET", CARD)
    card = reply.json
    assert (card["name"], card["description"], card["version"]) == ("Percy", "Tries everything.", "1.2.3")
    url = f"{node.url}/agents/percy"
    offered = {(each["protocolBinding"], each["protocolVersion"], each["url"]) for each in card["supportedInterfaces"]}
    assert offered == {(binding, v, url) for binding in ("JSONRPC", "HTTP+JSON") for v in ("1.0", "0.3")}
    assert (card["url"], card["preferredTransport"], card["protocolVersion"]) == (url, "JSONRPC", "0.3.0")
    assert card["capabilities"]["streaming"]
    assert card["capabilities"]["pushNotifications"]
    assert card["securityRequirements"] == [{"schemes": {"bearer": {"list": []}}}]
    assert card["security"] == [{"bearer": []}]
    shout = next(skill for skill in card["skills"] if skill["id"] == "shout")
    assert (shout["description"], shout["tags"]) == ("Say it louder.", ["tests"])
    assert json.loads(shout["examples"][-1]) == {"skill": "shout", "arguments": {"text": "..."}}
    [extension] = card["capabilities"]["extensions"]
    assert extension["params"]["shout"]["input"]["required"] == ["text"]


async def test_a_card_is_kept_by_clients_until_it_changes(node: Node) -> None:
    first = await node.send("GET", CARD)
    assert first.headers["cache-control"] == "private, max-age=60"
    for name, header in (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified")):
        again = await node.send("GET", CARD, headers={name: first.headers[header]})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    other = await node.send("GET", CARD, headers={"If-None-Match": '"another"'})
    assert (other.status, other.json) == (200, first.json)
    assert (await node.send("HEAD", CARD)).status == 200
    for path in (
        "/agents/percy/.well-known/agent.json",
        "/gateway/.well-known/agent-card.json",
        "/.well-known/agent.json",
    ):
        assert (await node.send("GET", path)).json["supportedInterfaces"]


async def test_cards_are_public_on_this_machine_only(node: Node) -> None:
    assert (await node.send("GET", CARD, token=None)).status == 200
    from_outside = await node.send("GET", CARD, token=None, headers={"Host": "fabric.example"})
    assert from_outside.status == 401
    assert from_outside.headers["www-authenticate"].startswith("Bearer")
    assert from_outside.json["error"]["details"][0]["reason"] == "UNAUTHENTICATED"
    guest = await node.send("GET", CARD, token="the-key-of-a-guest")
    assert guest.status == 404
    extended = await rpc(node, "GetExtendedAgentCard", {}, token="the-key-of-dave")
    assert [skill["id"] for skill in extended["result"]["skills"]] == ["say"]


async def test_a_skill_that_a_data_part_names_wrongly_is_named_in_the_answer() -> None:
    said = message({"data": {"skill": "sumarize", "arguments": {"text": "hi"}}})
    async with running(demo_percy, config={"doors": [{"kind": "fabric"}, {"kind": "a2a"}]}) as node:
        error = (await rpc(node, "SendMessage", {"message": said}))["error"]
    assert error["message"].startswith(
        "'sumarize' is not a skill of 'percy'. Name a skill of 'percy' in metadata.skill"
    )


async def test_the_gateways_card_lists_every_skill_once(node: Node) -> None:
    card = (await node.send("GET", "/.well-known/agent-card.json")).json
    assert (card["id"], card["endpoint"]) == ("local", f"{node.url}/gateway")
    assert {"add", "shout"} <= {skill["id"] for skill in card["skills"]}
    reply = await node.send("POST", "/gateway", json=_rpc("SendMessage", message("hi", skill="say")), headers=NEW)
    assert reply.json["result"]["task"]["artifacts"][0]["parts"] == [{"text": "hi"}]


async def test_a_message_refers_to_at_most_a_hundred_tasks(node: Node) -> None:
    said = message("hi", skill="say", referenceTaskIds=["some-task"] * 101)
    error = (await rpc(node, "SendMessage", {"message": said}))["error"]
    assert (error["code"], "referenceTaskIds" in error["message"]) == (-32602, True)


async def test_a_card_has_names_of_0_3_unless_the_client_says_that_it_speaks_1_0(node: Node) -> None:
    for path in ("", "/agents/percy"):
        both = await node.send("GET", f"{path}/.well-known/agent-card.json")
        new = await node.send("GET", f"{path}/.well-known/agent-card.json", headers=NEW)
        assert {"url", "protocolVersion", "preferredTransport"} <= both.json.keys()
        assert not {"url", "protocolVersion", "preferredTransport", "additionalInterfaces"} & new.json.keys()
        assert {each["protocolVersion"] for each in new.json["supportedInterfaces"]} == {"1.0"}
        assert "A2A-Version" in new.headers["vary"]


def _rpc(method: str, said: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"message": said, **more}}


async def test_a_signed_card_verifies_with_the_sdk_and_a_changed_one_does_not() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    signing = {"key": pem, "key_id": "k1", "keys_url": "https://fabric.example/keys"}
    verify = create_signature_verifier(lambda kid, jku: public, ["ES256"])
    config = {"doors": [{"kind": "a2a", "signing": signing}]}
    async with running(percy(), config=config) as node, httpx.AsyncClient(headers=KEY) as http:
        card = await A2ACardResolver(http, f"{node.url}/agents/percy").get_agent_card()
    header = json.loads(base64.urlsafe_b64decode(card.signatures[0].protected + "=="))
    assert (header["kid"], header["alg"], header["jku"]) == ("k1", "ES256", "https://fabric.example/keys")
    verify(card)
    card.description = "Something else."
    with pytest.raises(InvalidSignaturesError):
        verify(card)


async def test_a_request_that_says_nothing_is_of_version_0_3(node: Node) -> None:
    for version in (None, "", "0.3", "0.3.0"):
        reply = await rpc(node, "message/send", {"message": old("hi", skill="say")}, version=version)
        task = reply["result"]
        assert (task["kind"], task["status"]["state"]) == ("task", "completed")
        assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "hi"}]
        assert task["history"][0]["kind"] == "message"
    assert (await rpc(node, "SendMessage", {"message": message("hi", skill="say")}, version="1.0.1"))["result"]


@pytest.mark.parametrize(
    ("method", "version", "code"),
    [
        ("SendMessage", None, -32600),  # 0.3 knows no number for it
        ("SendMessage", "0.2", -32600),
        ("SendMessage", "99.0", -32009),
        ("SendMessage", "1.7x", -32009),
        ("message/send", "1.0", -32601),
        ("NoSuchMethod", "1.0", -32601),
        ("NoSuchMethod", None, -32601),
    ],
)
async def test_unknown_versions_and_methods_are_told_apart(
    node: Node, method: str, version: str | None, code: int
) -> None:
    error = (await rpc(node, method, {"message": message("hi")}, version=version))["error"]
    assert error["code"] == code
    reason = "METHOD_NOT_FOUND" if code == -32601 else "VERSION_NOT_SUPPORTED"
    assert error["data"][0] | {"metadata": {}} == {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "a2a-protocol.org",
        "metadata": {},
    }


async def test_the_same_over_http_has_the_status_and_the_reason(node: Node) -> None:
    for headers, path, status, reason in (
        ({"A2A-Version": "99.0"}, "/agents/percy/message:send", 400, "VERSION_NOT_SUPPORTED"),
        ({}, "/agents/percy/message:send", 400, "VERSION_NOT_SUPPORTED"),
        (NEW, "/agents/percy/v1/message:send", 400, "VERSION_NOT_SUPPORTED"),
        (NEW, "/agents/nobody/message:send", 404, "AGENT_NOT_FOUND"),
        ({**NEW, "Content-Type": "text/plain"}, "/agents/percy/message:send", 415, "CONTENT_TYPE_NOT_SUPPORTED"),
    ):
        body = json.dumps({"message": message("hi")})
        typed = {"Content-Type": "application/a2a+json", **headers}
        reply = await node.send("POST", path, data=body, headers=typed)
        error = reply.json["error"]
        assert (reply.status, error["code"], error["details"][0]["reason"]) == (status, status, reason)
    found = await node.send("GET", "/agents/percy/tasks/none", headers=NEW)
    assert (found.status, found.json["error"]["status"]) == (404, "NOT_FOUND")
    assert found.headers["content-type"] == "application/json"
    wrong = await node.send("GET", "/agents/percy/message:send", headers=NEW)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{not json", -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "GetTask"}]', -32600),
        (b'{"id": 1, "method": "GetTask"}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "GetTask"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "GetTask"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": {"messageId": "m", '
         b'"role": "ROLE_USER", "parts": []}}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": {"messageId": "m", '
         b'"role": "ROLE_USER", "parts": [{"raw": "???"}], "metadata": {"skill": "show"}}}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": {"messageId": "m", '
         b'"role": "ROLE_USER", "parts": [{"raw": "AAEC", "mediaType": "application/x-none"}], '
         b'"metadata": {"skill": "shout"}}}}', -32005),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageToken": "x"}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"status": "DONE"}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": "x"}}', -32001),
    ],
)  # fmt: skip
async def test_every_bad_request_has_its_code(node: Node, body: bytes, code: int) -> None:
    headers = {**NEW, "Content-Type": "application/json"}
    reply = await node.send("POST", "/agents/percy", data=body, headers=headers)
    assert (reply.status, reply.json["error"]["code"]) == (200, code)


async def test_a_body_that_is_not_json_is_refused_by_its_type(node: Node) -> None:
    body = json.dumps(_rpc("SendMessage", message("hi"))).encode()
    reply = await node.send("POST", "/agents/percy", data=body, headers={**NEW, "Content-Type": "text/xml"})
    assert (reply.status, reply.json["error"]["code"]) == (415, -32005)
    typed = await node.send("POST", "/agents/percy", data=body, headers={**NEW, "Content-Type": "application/a2a+json"})
    assert typed.json["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_without_a_key_no_caller_is_let_in_and_the_request_is_not_read(node: Node) -> None:
    reply = await raw(node, "GetTask", {"id": "x"}, token=None)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, 'Bearer realm="fabric"')
    assert reply.json["id"] is None
    hidden = await raw(node, "GetTask", {"id": "x"}, token="the-key-of-a-guest")
    assert hidden.status == 404
    forbidden = await raw(node, "SendMessage", {"message": message("hi", skill="shout")}, token="the-key-of-dave")
    assert (forbidden.status, forbidden.json["error"]["data"][0]["reason"]) == (403, "PERMISSION_DENIED")


async def test_another_callers_task_is_not_found(node: Node) -> None:
    task = (await rpc(node, "SendMessage", {"message": message("mine", skill="say")}))["result"]["task"]
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        error = (await rpc(node, method, {"id": task["id"]}, token="the-key-of-bob"))["error"]
        assert error["code"] == -32001
    assert (await rpc(node, "GetTask", {"id": task["id"]}, agent="adder"))["error"]["code"] == -32001
    at_gateway = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task["id"]}}
    assert "result" in (await node.send("POST", "/gateway", json=at_gateway, headers=NEW)).json
    assert (await rpc(node, "ListTasks", {}, token="the-key-of-bob"))["result"]["tasks"] == []


async def test_numbers_metadata_and_unknown_fields_come_back_as_they_were_sent(node: Node) -> None:
    said = message({"data": {"text": "x", "times": 7, "big": 2**60}, "extra": {"n": 1}}, skill="shout", later=[1, 2.0])
    said["metadata"]["trace"] = {"n": 1, "f": 1.5}
    params = {"message": said, "metadata": {"order": 12}}
    task = (await rpc(node, "SendMessage", params))["result"]["task"]
    [first] = task["history"]
    assert {name: first[name] for name in said} == said
    assert task["metadata"]["order"] == 12
    assert task["artifacts"][0]["parts"] == [{"data": {"text": "X", "times": 7}}]


async def test_an_agent_that_wants_to_know_gets_the_messages_ids_and_metadata(node: Node) -> None:
    said = message("x", contextId="c1", skill="envelope", extensions=["urn:x"], referenceTaskIds=["t0"])
    task = (await rpc(node, "SendMessage", {"message": said}))["result"]["task"]
    seen = task["artifacts"][0]["parts"][0]["data"]
    assert task["contextId"] == "c1"
    assert seen["conversation"].endswith(".c1"), "bound to its caller"
    assert seen["a2a"] == {key: value for key, value in said.items() if key not in ("parts", "role")}


async def test_the_same_message_again_is_the_same_task_and_another_is_not(node: Node) -> None:
    said = message("once", skill="say")
    replies = await asyncio.gather(*(rpc(node, "SendMessage", {"message": said}) for _ in range(5)))
    tasks = [reply["result"]["task"] for reply in replies]
    assert len({task["id"] for task in tasks}) == 1
    assert len({task["contextId"] for task in tasks}) == 1
    assert all(task["artifacts"][0]["parts"] == [{"text": "once"}] for task in tasks)
    other = {**said, "parts": [{"text": "something else"}]}
    assert (await rpc(node, "SendMessage", {"message": other}))["result"]["task"]["id"] != tasks[0]["id"]
    bobs = await rpc(node, "SendMessage", {"message": said}, token="the-key-of-bob")
    assert bobs["result"]["task"]["id"] != tasks[0]["id"]


async def test_an_answer_that_comes_twice_is_taken_once(node: Node) -> None:
    task = (await rpc(node, "SendMessage", {"message": message("a lid", skill="paint")}))["result"]["task"]
    answer = message("red", taskId=task["id"])
    for _ in range(2):
        task = (await rpc(node, "SendMessage", {"message": answer}))["result"]["task"]
        assert task["status"]["message"]["parts"][0] == {"text": "Which size?"}
    done = message({"data": {"size": 3}}, taskId=task["id"])
    for _ in range(2):
        task = (await rpc(node, "SendMessage", {"message": done}))["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_another_answer_under_the_same_id_is_no_repetition(node: Node) -> None:
    task = (await rpc(node, "SendMessage", {"message": message("a lid", skill="paint")}))["result"]["task"]
    answer = message("red", taskId=task["id"])
    assert (await rpc(node, "SendMessage", {"message": answer}))["result"]["task"]["status"]["message"]
    other = {**answer, "parts": [{"data": {"size": 3}}]}
    task = (await rpc(node, "SendMessage", {"message": other}))["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_reader_comes_back_with_the_last_number_and_misses_nothing(node: Node) -> None:
    body = _rpc("SendStreamingMessage", message("one two three", skill="talk"))
    events = frames((await node.send("POST", "/agents/percy", json=body, headers=NEW)).body)
    numbers = [number for number, _ in events if number is not None]
    assert len(numbers) == len(events) - 1  # the last chunk is sent again with the final status
    assert numbers == sorted(set(numbers))
    task_id = events[0][1]["result"]["task"]["id"]
    again = _rpc("SubscribeToTask", {}) | {"params": {"id": task_id}}
    for position in (1, 3):
        headers = {**NEW, "Last-Event-ID": str(numbers[position])}
        first, *rest = frames((await node.send("POST", "/agents/percy", json=again, headers=headers)).body)
        assert first[1]["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert rest == events[position + 1 :]


async def test_who_takes_no_json_gets_it_as_text(node: Node) -> None:
    params = {"message": message("x", skill="shout"), "configuration": {"acceptedOutputModes": ["text/plain"]}}
    [part] = (await rpc(node, "SendMessage", params))["result"]["task"]["artifacts"][0]["parts"]
    assert json.loads(part["text"]) == {"text": "X", "times": 1}


async def test_version_0_3_over_http_as_its_proto_is_written(node: Node) -> None:
    said = message(skill="say")
    del said["parts"]
    said["content"] = [{"text": "hi"}]
    reply = await node.send("POST", "/agents/percy/v1/message:send", json={"request": said})
    task = reply.json["task"]
    assert (reply.headers["content-type"], task["status"]["state"]) == ("application/json", "TASK_STATE_COMPLETED")
    assert task["history"][0]["content"] == [{"text": "hi"}]
    got = await node.send("GET", f"/agents/percy/v1/tasks/{task['id']}?historyLength=0")
    assert (got.json["id"], "history" in got.json) == (task["id"], False)
    assert (await node.send("GET", "/agents/percy/v1/card")).json["name"] == "Percy"


async def test_what_is_not_ours_is_left_to_others(node: Node) -> None:
    assert (await node.send("GET", "/agents/percy/mcp")).status != 404
    for path in ("/agents/percy/other", "/agents/percy/tasks/x/y", "/gateway/nothing", "/agents/"):
        reply = await node.send("GET", path)
        assert (reply.status, reply.json["error_code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("place", ["/agents/percy", "/agents/percy/", "/gateway", "/gateway/"])
async def test_an_address_is_the_same_with_a_slash_at_its_end_and_no_client_is_redirected(
    node: Node, place: str
) -> None:
    reply = await node.send("POST", place, json=_rpc("SendMessage", message("hi", skill="say")), headers=NEW)
    assert (reply.status, "location" in reply.headers) == (200, False)
    assert reply.json["result"]["task"]["artifacts"][0]["parts"] == [{"text": "hi"}]


async def test_a_path_that_the_protocol_does_not_have_is_told_of_in_its_words_to_its_clients(node: Node) -> None:
    for method, path in (("GET", "/agents/percy/other"), ("POST", "/agents/percy/tasks/x/y"), ("GET", "/gateway/x")):
        reply = await node.send(method, path, headers=NEW)
        error = reply.json["error"]
        assert (reply.status, error["code"], error["status"]) == (404, 404, "UNIMPLEMENTED")
        assert error["details"][0]["reason"] == "METHOD_NOT_FOUND"


async def test_large_content_passes_and_too_large_is_refused() -> None:
    large = base64.b64encode(bytes(5 * 1024 * 1024)).decode()
    said = message({"raw": large, "mediaType": "application/pdf", "filename": "a.pdf"}, skill="show")
    body = json.dumps(_rpc("SendMessage", said)).encode()
    headers = {**NEW, "Content-Type": "application/json"}
    async with running(percy(), config={"doors": DOORS}) as roomy:
        reply = await roomy.send("POST", "/agents/percy", data=io.BytesIO(body), headers=headers)
        assert reply.json["result"]["task"]["artifacts"][0]["parts"][0]["raw"] == large
    doors = [{"kind": "a2a", "body_bytes": 1024 * 1024}]
    async with running(percy(), config={"doors": doors}) as narrow:
        reply = await narrow.send("POST", "/agents/percy", data=io.BytesIO(body), headers=headers)
        assert (reply.status, reply.json["error"]["data"][0]["reason"]) == (413, "PAYLOAD_TOO_LARGE")


async def test_tasks_survive_a_restart(tmp_path: Path) -> None:
    config = {"doors": DOORS, "store": f"sqlite:{tmp_path / 'fabric.db'}"}
    async with running(percy(), config=config) as before:
        task = (await rpc(before, "SendMessage", {"message": message("a chest", skill="paint")}))["result"]["task"]
        done = (await rpc(before, "SendMessage", {"message": message("kept", skill="say")}))["result"]["task"]
    async with running(percy(), config=config) as after:
        assert (await rpc(after, "GetTask", {"id": done["id"]}))["result"] == done
        assert (await rpc(after, "GetTask", {"id": task["id"]}))["result"] == task
        answered = await rpc(after, "SendMessage", {"message": message("red", taskId=task["id"])})
        assert answered["result"]["task"]["status"]["message"]["parts"][0] == {"text": "Which size?"}


@pytest.mark.parametrize("tasks", ["never", "auto"])
async def test_quick_answers_may_be_messages_without_a_task(tasks: str, tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    door = {"kind": "a2a", "tasks": tasks, "task_after_ms": 200}
    async with running(percy(), config={"doors": [door]}) as node:
        reply = (await rpc(node, "SendMessage", {"message": message("hi", skill="say", contextId="c1")}))["result"]
        assert reply["message"]["parts"] == [{"text": "hi"}]
        assert (reply["message"]["contextId"], reply["message"]["role"]) == ("c1", "ROLE_AGENT")
        assert (await rpc(node, "ListTasks", {}))["result"]["totalSize"] == 0
        said = message({"data": {"go_on": str(go_on)}}, skill="wait")
        waiting = asyncio.ensure_future(rpc(node, "SendMessage", {"message": said}))
        if tasks == "auto":
            await eventually(lambda: _has_tasks(node))
        go_on.touch()
        async with asyncio.timeout(WAIT_TIMEOUT):
            slow = (await waiting)["result"]
        assert ("task" in slow) == (tasks == "auto")


async def _has_tasks(node: Node) -> bool:
    return bool((await rpc(node, "ListTasks", {}))["result"]["totalSize"])


async def test_a_task_goes_on_when_its_sender_leaves(node: Node, tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    context_id = f"left {go_on}"
    said = message({"data": {"go_on": str(go_on)}}, skill="wait", contextId=context_id)
    body = json.dumps(_rpc("SendMessage", said)).encode()
    head = f"POST /agents/percy HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY['Authorization']}\r\n"
    head += f"A2A-Version: 1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"

    async def is_(state: str) -> bool:
        tasks = (await rpc(node, "ListTasks", {"contextId": context_id}))["result"]["tasks"]
        return [task["status"]["state"] for task in tasks] == [f"TASK_STATE_{state}"]

    async with node.raw(head.encode() + body):
        await eventually(lambda: is_("WORKING"))
    go_on.touch()
    await eventually(lambda: is_("COMPLETED"))


async def test_a_caller_is_not_kept_waiting_for_ever(tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    async with running(percy(), config={"doors": [{"kind": "a2a", "blocking_seconds": 0.2}]}) as node:
        said = message({"data": {"go_on": str(go_on)}}, skill="wait")
        task = (await rpc(node, "SendMessage", {"message": said}))["result"]["task"]
        assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")  # on a busy machine, not yet
        go_on.touch()
        await eventually(lambda: _is_done(node, task["id"]))


async def _is_done(node: Node, task_id: str) -> bool:
    task = (await rpc(node, "GetTask", {"id": task_id}))["result"]
    return bool(task["status"]["state"] == "TASK_STATE_COMPLETED")


async def test_the_extended_card_has_names_of_0_3_only_for_clients_of_0_3(node: Node) -> None:
    new = (await rpc(node, "GetExtendedAgentCard", {}))["result"]
    assert "supportedInterfaces" in new
    assert not {"url", "additionalInterfaces", "preferredTransport", "protocolVersion"} & new.keys()
    old = (await rpc(node, "agent/getAuthenticatedExtendedCard", {}, version="0.3"))["result"]
    assert old["preferredTransport"] == "JSONRPC"
