"""Document 004 over REST: agents, messages and conversations, in exactly its shapes."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.doors.rest_bench import (
    BOB,
    EVE,
    ISO_Z,
    check_error,
    events,
    mirror,
    percy,
    rest,
    said_to,
    sent,
    text,
    to,
)
from tests.fixtures.node import WAIT_TIMEOUT, Node, Reply, eventually
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

BYTES = base64.b64encode(b"some bytes").decode()
MESSAGE = {"id", "timestamp", "sender", "recipient", "parts", "metadata"}
_numbers = iter(range(10**9))


def fresh(prefix: str) -> str:
    return f"{prefix}_{next(_numbers)}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with rest(percy(), mirror()) as found:
        yield found


@requirement("004-08", "004-11", "004-12", "004-25")
@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_agents_are_cards_with_and_without_the_version(node: Node, prefix: str) -> None:
    listed = await node.send("GET", f"{prefix}/agents")
    cards = {card["id"]: card for card in listed.json["agents"]}
    one = await node.send("GET", f"{prefix}/agents/percy")
    card = one.json
    assert {**cards["percy"], "metadata": 0} == {**card, "metadata": 0}  # which tells how it is at the moment
    assert set(card) == {"id", "name", "description", "version", "capabilities", "endpoint", "auth", "metadata"}
    assert (card["name"], card["description"], card["version"]) == ("Percy", "Says it louder", "1.2.0")
    assert card["capabilities"] == ["shout"]
    assert card["endpoint"] == f"{node.url}/v1/agents/percy"
    assert card["auth"] == {"type": "api_key"}
    assert isinstance(card["metadata"], dict)


@requirement("004-08")
async def test_the_endpoint_on_the_card_takes_messages(node: Node) -> None:
    card = (await node.send("GET", "/v1/agents/percy")).json
    address = card["endpoint"].removeprefix(node.url) + "/messages"
    reply = await node.send("POST", address, json={"parts": [text("hey")]})
    assert reply.status == 201
    assert (await said_to(node, reply.json))["parts"] == [{"type": "text", "content": "HEY"}]


@requirement("004-12", "004-24")
async def test_an_unknown_agent_is_not_found(node: Node) -> None:
    check_error(await node.send("GET", "/v1/agents/nobody"), 404, "NOT_FOUND", agent_id="nobody")


@requirement("004-01", "004-02", "004-03", "004-04", "004-14", "004-15")
async def test_the_document_s_own_message_is_taken_shown_and_answered(node: Node) -> None:
    given = {
        "id": fresh("msg"),
        "timestamp": "2025-05-25T14:25:00Z",
        "sender": {"id": "client_abc", "type": "client"},
        "recipient": {"id": "percy", "type": "agent"},
        "parts": [{"type": "text", "content": "What's the weather?", "metadata": {"language": "en"}}],
        "metadata": {"conversation_id": fresh("conv")},
    }
    reply = await node.send("POST", "/v1/messages", json=given)
    assert reply.status == 201
    assert set(reply.json) == MESSAGE
    assert ISO_Z.fullmatch(reply.json["timestamp"])
    assert {key: reply.json[key] for key in ("id", "sender", "recipient", "parts")} == {
        key: given[key] for key in ("id", "sender", "recipient", "parts")
    }
    assert reply.json["metadata"]["conversation_id"] == given["metadata"]["conversation_id"]  # type: ignore[index]
    shown = await node.send("GET", f"/v1/messages/{given['id']}")
    assert (shown.status, shown.json["parts"]) == (200, given["parts"])
    answer = await said_to(node, reply.json)
    assert set(answer) == MESSAGE
    assert answer["id"].startswith("msg_")
    assert answer["sender"] == {"id": "percy", "type": "agent"}
    assert answer["recipient"] == given["sender"]
    assert answer["parts"] == [{"type": "text", "content": "WHAT'S THE WEATHER?"}]
    assert answer["metadata"]["conversation_id"] == reply.json["metadata"]["conversation_id"]
    assert answer["metadata"]["in_reply_to"] == given["id"]


@requirement("004-13", "004-02")
@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_a_message_to_an_agent_needs_nothing_but_parts(node: Node, prefix: str) -> None:
    reply = await node.send("POST", f"{prefix}/agents/percy/messages", json={"parts": [text("hello")]})
    assert reply.status == 201
    assert reply.json["id"].startswith("msg_")
    assert reply.json["recipient"] == {"id": "percy", "type": "agent"}
    assert reply.json["sender"] == {"id": "psk", "type": "client"}
    assert reply.json["metadata"]["conversation_id"].startswith("conv_")
    assert reply.headers["location"] == f"/v1/messages/{reply.json['id']}"
    assert reply.json["metadata"]["delivery"]["status"] == "pending"
    await said_to(node, reply.json)

    async def is_delivered() -> bool:
        shown = (await node.send("GET", reply.headers["location"])).json
        return bool(shown["metadata"]["delivery"]["status"] == "delivered")

    await eventually(is_delivered)


@requirement("004-16", "004-01")
async def test_a_conversation_is_its_messages_in_order_a_page_at_a_time(node: Node) -> None:
    conversation = fresh("conv")
    for word in ("one", "two", "three"):
        message = await sent(node, to("percy", text(word), metadata={"conversation_id": conversation}))
        await said_to(node, message)
    whole = (await node.send("GET", f"/v1/conversations/{conversation}/messages")).json
    words = [message["parts"][0]["content"] for message in whole["messages"]]
    assert words == ["one", "ONE", "two", "TWO", "three", "THREE"]
    assert whole["nextCursor"] is None
    pages, path = [], f"/conversations/{conversation}/messages?limit=4"
    for _ in range(2):
        reply = await node.send("GET", path)
        pages.append([message["parts"][0]["content"] for message in reply.json["messages"]])
        path = f"/conversations/{conversation}/messages?limit=4&cursor={reply.json['nextCursor']}"
        if reply.json["nextCursor"]:
            assert 'rel="next"' in reply.headers["link"]
    assert pages == [["one", "ONE", "two", "TWO"], ["three", "THREE"]]


async def test_unknown_messages_and_conversations_are_not_found(node: Node) -> None:
    check_error(await node.send("GET", "/v1/messages/msg_none"), 404, "NOT_FOUND", message_id="msg_none")
    check_error(await node.send("GET", "/v1/conversations/none/messages"), 404, "NOT_FOUND", conversation_id="none")
    check_error(await node.send("GET", "/v1/conversations/none/events"), 404, "NOT_FOUND", conversation_id="none")


PARTS: list[dict[str, Any]] = [
    {"type": "image", "content": BYTES, "metadata": {"mimeType": "image/png", "name": "a.png"}},
    {"type": "image", "content": "https://example.com/a.png", "metadata": {"mimeType": "image/png"}},
    {"type": "audio", "content": BYTES, "metadata": {"mimeType": "audio/wav"}},
    {"type": "audio", "content": "https://example.com/a.wav"},
    {"type": "video", "content": BYTES, "metadata": {"mimeType": "video/mp4"}},
    {"type": "video", "content": "https://example.com/a.mp4"},
    {"type": "file", "content": BYTES, "metadata": {"mimeType": "application/pdf", "name": "a.pdf"}},
    {"type": "file", "content": "https://example.com/a.pdf"},
    {"type": "json", "content": [1, {"two": None}]},
    {"type": "function_call", "content": {"name": "add", "parameters": {"a": 1}}},
    {"type": "function_result", "content": {"name": "add", "result": 2}},
    {"type": "mycompany.custom_type", "content": {"any": ["thing"]}, "metadata": {"of": "ours"}},
    {"type": "somethingNew", "content": "words"},
]


@requirement("004-04", "004-05", "004-06", "004-07", "004-26", "004-28")
@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part['type']}-{str(part['content'])[:5]}")
async def test_every_type_of_part_reaches_the_agent_and_comes_back(node: Node, part: dict[str, Any]) -> None:
    """What is unknown is kept as it is, in the store and on the way, both ways."""
    message = await sent(node, to("mirror", text("look"), part))
    assert message["parts"] == [text("look"), part]
    assert (await said_to(node, message))["parts"] == [text("look"), part]


@requirement("004-05")
async def test_words_and_one_object_are_task_and_arguments(node: Node) -> None:
    message = await sent(node, to("mirror", {"type": "json", "content": {"a": {"b": 1}}}, text("with")))
    assert (await said_to(node, message))["parts"] == [text("with"), {"type": "json", "content": {"a": {"b": 1}}}]


BAD_PARTS: list[tuple[Any, str]] = [
    ({"type": "image", "content": "not base64!"}, "parts[0].content"),
    ({"type": "file", "content": "YWJj="}, "parts[0].content"),
    ({"type": "audio", "content": {"neither": 1}}, "parts[0].content"),
    ({"type": "text", "content": {"words": 1}}, "parts[0].content"),
    ({"type": "function_call", "content": "add"}, "parts[0].content"),
    ({"type": "text"}, "parts[0].content"),
    ({"content": "x"}, "parts[0].type"),
    ({"type": 7, "content": "x"}, "parts[0].type"),
    ("words", "parts[0]"),
]


@requirement("004-06", "004-23", "004-27", "004-29")
@pytest.mark.parametrize(("part", "field"), BAD_PARTS, ids=lambda each: str(each)[:40])
async def test_a_part_that_is_not_what_it_says_is_refused_by_name(node: Node, part: Any, field: str) -> None:
    error = check_error(await node.send("POST", "/messages", json=to("percy", part)), 400, "INVALID_REQUEST")
    assert error["details"]["field"] == field
    assert error["details"]["issue"]


@requirement("004-06")
async def test_five_megabytes_of_base64_go_through_and_what_is_too_large_does_not(node: Node) -> None:
    big = base64.b64encode(bytes(range(256)) * 4 * 4096).decode()
    message = await posted(node, to("mirror", {"type": "file", "content": big}))
    assert message.status == 201
    [part] = (await said_to(node, message.json))["parts"]
    assert part["content"] == big
    check_error(await posted(node, to("mirror", {"type": "file", "content": big * 3})), 413, "PAYLOAD_TOO_LARGE")


async def posted(node: Node, body: Any) -> Reply:
    """A large body, which this client wants as a file."""
    file = io.BytesIO(json.dumps(body).encode())
    return await node.send("POST", "/v1/messages", data=file, headers={"Content-Type": "application/json"})


@requirement("004-23", "004-27")
@pytest.mark.parametrize(
    ("body", "field", "issue"),
    [
        ({"parts": [text("x")]}, "recipient", "required"),
        ({"recipient": {"type": "agent"}, "parts": [text("x")]}, "recipient.id", "required"),
        ({"recipient": {"id": "percy"}}, "parts", "required"),
        ({"recipient": {"id": "percy"}, "parts": []}, "parts", None),
        ({"recipient": {"id": "percy", "type": "planet"}, "parts": [text("x")]}, "recipient.type", None),
        (to("percy", text("x"), metadata={"conversation_id": 7}), "metadata.conversation_id", None),
        (to("percy", text("x"), metadata={"ttl_seconds": -1}), "metadata.ttl_seconds", None),
        (to("percy", text("x"), id="a\nb"), "id", None),
    ],
)
async def test_a_message_is_checked_against_the_schema(node: Node, body: Any, field: str, issue: str | None) -> None:
    error = check_error(await node.send("POST", "/v1/messages", json=body), 400, "INVALID_REQUEST", field=field)
    assert error["details"]["issue"] == issue if issue else error["details"]["issue"]


async def test_a_recipient_that_is_not_there_is_not_found_and_nothing_is_kept(node: Node) -> None:
    given = to("nobody", text("x"), id=fresh("msg"))
    check_error(await node.send("POST", "/v1/messages", json=given), 404, "NOT_FOUND", agent_id="nobody")
    assert (await node.send("GET", f"/v1/messages/{given['id']}")).status == 404
    wrong = {"recipient": {"id": "mirror"}, "parts": [text("x")]}
    check_error(await node.send("POST", "/agents/percy/messages", json=wrong), 400, "INVALID_REQUEST")


async def test_input_that_the_agent_would_refuse_is_refused_at_once_and_nothing_is_kept(node: Node) -> None:
    given = to("percy", {"type": "json", "content": {"loud": True}}, id=fresh("msg"))
    check_error(await node.send("POST", "/v1/messages", json=given), 400, "INVALID_REQUEST")
    assert (await node.send("GET", f"/v1/messages/{given['id']}")).status == 404


async def test_the_same_id_is_the_same_message_and_another_one_is_a_conflict(node: Node) -> None:
    given = to("percy", text("once"), id=fresh("msg"))
    first = await node.send("POST", "/v1/messages", json=given)
    await said_to(node, first.json)
    again = await node.send("POST", "/v1/messages", json=given)
    assert (first.status, again.status) == (201, 200)
    conversation = first.json["metadata"]["conversation_id"]
    assert again.json["metadata"]["conversation_id"] == conversation
    messages = (await node.send("GET", f"/v1/conversations/{conversation}/messages")).json["messages"]
    assert [message["parts"][0]["content"] for message in messages] == ["once", "ONCE"]
    other = await node.send("POST", "/v1/messages", json={**given, "parts": [text("twice")]})
    error = check_error(other, 409, "CONFLICT", field="id", issue="used for another message")
    assert f"'{given['id']}'" in error["message"]


async def test_an_idempotency_key_does_the_same_for_messages_without_ids(node: Node) -> None:
    key = {"Idempotency-Key": fresh("key")}
    first = await node.send("POST", "/v1/messages", json=to("percy", text("once")), headers=key)
    again = await node.send("POST", "/v1/messages", json=to("percy", text("once")), headers=key)
    assert (first.status, again.status, again.json["id"]) == (201, 200, first.json["id"])
    other = await node.send("POST", "/v1/messages", json=to("percy", text("twice")), headers=key)
    check_error(other, 409, "CONFLICT", field="Idempotency-Key", issue="used for another message")


async def test_ids_are_each_caller_s_own(node: Node) -> None:
    """Two callers may use the same id, and neither sees the other's message."""
    given = to("percy", text("mine"), id=fresh("msg"))
    theirs = to("percy", text("theirs"), id=given["id"])
    assert (await node.send("POST", "/v1/messages", json=given)).status == 201
    assert (await node.send("POST", "/v1/messages", json=theirs, token=BOB)).status == 201
    for token, word in ((None, "mine"), (BOB, "theirs")):
        more = {} if token is None else {"token": token}
        shown = await node.send("GET", f"/v1/messages/{given['id']}", **more)
        assert shown.json["parts"] == [text(word)]
    check_error(await node.send("GET", f"/v1/messages/{given['id']}", token=EVE), 404, "NOT_FOUND")


@requirement("004-03")
async def test_no_caller_speaks_in_another_caller_s_name(node: Node) -> None:
    for sender in ({"id": "eve", "type": "client"}, {"id": "percy", "type": "agent"}):
        reply = await node.send("POST", "/v1/messages", json=to("percy", text("x"), sender=sender), token=BOB)
        check_error(reply, 403, "FORBIDDEN", field="sender.id")
    own = to("percy", text("x"), sender={"id": "bob", "type": "client"})
    assert (await node.send("POST", "/v1/messages", json=own, token=BOB)).status == 201


async def test_a_conversation_shows_everybody_what_is_theirs(node: Node) -> None:
    conversation = {"conversation_id": fresh("conv")}
    path = f"/v1/conversations/{conversation['conversation_id']}/messages"
    mine = await sent(node, to("percy", text("secret"), metadata=conversation), token=BOB)
    await said_to(node, mine, token=BOB)
    assert len((await node.send("GET", path, token=BOB)).json["messages"]) == 2
    check_error(await node.send("GET", path, token=EVE), 404, "NOT_FOUND")
    await sent(node, to("percy", text("let me in"), metadata=conversation), token=EVE)
    seen = (await node.send("GET", path, token=EVE)).json["messages"]
    assert {message["sender"]["id"] for message in seen} <= {"eve", "percy"}
    assert "secret" not in str(seen).lower()


@requirement("004-03")
async def test_a_message_to_a_client_waits_in_its_inbox_until_it_is_acknowledged(node: Node) -> None:
    body = {"recipient": {"id": "bob", "type": "client"}, "parts": [text("for bob")]}
    message = await sent(node, body)
    assert "delivery" not in message["metadata"]
    got = (await node.send("GET", "/v1/inbox?wait=20&limit=100", token=BOB)).json["deliveries"]
    [mine] = [each for each in got if each["message"]["id"] == message["id"]]
    assert mine["message"]["parts"] == [text("for bob")]
    assert (await node.send("GET", f"/v1/messages/{message['id']}", token=BOB)).status == 200
    done = {"entries": [each["entry"] for each in got]}
    assert (await node.send("POST", "/v1/inbox/acknowledgements", json=done, token=BOB)).json == done
    assert (await node.send("POST", "/v1/inbox/acknowledgements", json=done, token=BOB)).json == {"entries": []}
    assert (await node.send("GET", "/v1/inbox", token=BOB)).json == {"deliveries": []}


async def test_a_conversation_is_followed_from_any_message_on(node: Node) -> None:
    conversation = fresh("conv")
    first = await sent(node, to("percy", text("one"), metadata={"conversation_id": conversation}))
    await said_to(node, first)
    path = f"/v1/conversations/{conversation}/events"
    async with asyncio.timeout(WAIT_TIMEOUT), events(node, path) as told:
        seen = [await anext(told), await anext(told)]
        await sent(node, to("percy", text("two"), metadata={"conversation_id": conversation}))
        seen += [await anext(told), await anext(told)]
    assert [event for event, _, _ in seen] == ["message"] * 4
    assert [number for _, number, _ in seen] == [1, 2, 3, 4]
    assert [message["parts"][0]["content"] for _, _, message in seen] == ["one", "ONE", "two", "TWO"]
    async with asyncio.timeout(WAIT_TIMEOUT), events(node, path, **{"Last-Event-ID": "3"}) as told:
        _, number, message = await anext(told)
        assert (number, message["parts"]) == (4, [text("TWO")])


async def test_an_agent_of_several_capabilities_gets_the_one_that_is_named_or_that_fits(node: Node) -> None:
    named = to("percy", text("x"), metadata={"capability": "sing"})
    check_error(await node.send("POST", "/v1/messages", json=named), 404, "NOT_FOUND", capability="sing")
    assert (
        await node.send("POST", "/v1/messages", json=to("percy", text("x"), metadata={"capability": "shout"}))
    ).status == 201
