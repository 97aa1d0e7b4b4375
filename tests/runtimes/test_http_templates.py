"""The `http` runtime with other people's APIs: addresses, queries, bodies and replies as the manifest has them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from a2a_fabric.core.agent import Manifest
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http.endpoint import HTTPEndpoint
from a2a_fabric.runtimes.http.runtime import build
from tests.fixtures.apis.shop import PNG, app
from tests.fixtures.node import Node, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening
from tests.runtimes.http_agents import BEHAVIOURS, Exchange, agents

pytestmark = pytest.mark.asyncio(loop_scope="module")

CITY = {
    "name": "act",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
ALONE = {"routing": {"fallback": False}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop() -> AsyncIterator[str]:
    async with listening(app) as url:
        yield url


def api(agent_id: str, capability: dict[str, Any] | None = None, **endpoint: Any) -> dict[str, Any]:
    return {"agent_id": agent_id, "runtime": "http", "endpoint": endpoint, "capabilities": [capability or CITY]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(shop: str) -> AsyncIterator[Node]:
    body = {"where": {"city": "$arguments.city", "days": "$arguments.days?"}, "tags": ["$arguments.days?", "x"]}
    query = {"q": "$arguments.city", "n": "$arguments.days?", "k": "env:KEY"}
    manifests = [
        api("get", uri=f"{shop}/v1/seen", method="GET"),
        api("path", uri=f"{shop}/v1/seen/${{arguments.city}}/weather", method="GET", headers={"X-Key": "env:KEY"}),
        api("query", uri=f"{shop}/v1/seen?units=m", query=query),
        api("body", uri=f"{shop}/v1/seen", method="PUT", request=body),
        api("free", {"name": "act"}, uri=f"{shop}/v1/seen", method="GET"),
        api("jmespath", uri=f"{shop}/v1/seen", request=body, reply="{asked: body.where.city, how: method}"),
        api("nothing", uri=f"{shop}/v1/seen", request=body, reply="body.nobody.home"),
        api("picture", uri=f"{shop}/v1/pets/1/picture", method="GET"),
        api("refused", uri=f"{shop}/v1/pets/99", method="GET", error="title"),
        api("files", {"name": "act"}, uri=f"{shop}/v1/seen", request={"files": "$attachments", "said": "$task"}),
    ]  # fmt: skip
    async with running(manifests=manifests, config=ALONE, environ={"KEY": "k 1"}) as found:
        yield found


async def sent(node: Node, agent_id: str, **context: Any) -> Any:
    reply = await node.ask(agent_id, "act", "", context=context)
    assert reply["ok"], reply
    return reply["result"]


@requirement("001-17")
async def test_a_get_takes_its_arguments_as_a_query(node: Node) -> None:
    shown = await sent(node, "get", city="Zürich & Bern", days=3)
    assert (shown["method"], shown["query"]) == ("GET", [["city", "Zürich & Bern"], ["days", "3"]])
    assert shown["body"] is None
    free = (await node.ask("free", "act", "find it", context={"deep": [1, 2]}))["result"]
    assert free["query"] == [["deep", "1"], ["deep", "2"], ["task", "find it"]]


async def test_arguments_stand_in_the_address_and_headers_come_from_the_environment(node: Node) -> None:
    shown = await sent(node, "path", city="a/b?c#d")
    assert shown["path"] == "/v1/seen/a%2Fb%3Fc%23d/weather"
    assert (shown["query"], shown["headers"]["x-key"]) == ([], "k 1")


async def test_an_argument_cannot_lead_out_of_its_place_in_the_address(node: Node) -> None:
    reply = await node.ask("path", "act", "", context={"city": ".."})
    assert reply["error_code"] == "BAD_INPUT"
    assert "arguments.city" in reply["error"]


async def test_a_query_is_filled_and_what_is_optional_left_out(node: Node) -> None:
    shown = await sent(node, "query", city="Bern")
    assert shown["query"] == [["units", "m"], ["q", "Bern"], ["k", "k 1"]]
    assert (await sent(node, "query", city="Bern", days=2))["query"][2] == ["n", "2"]
    missing = await node.ask("query", "act", "")
    assert (missing["error_code"], missing["error_details"]["field"]) == ("BAD_INPUT", "arguments.city")


async def test_a_body_is_filled_and_what_is_optional_left_out(node: Node) -> None:
    assert (await sent(node, "body", city="Bern"))["body"] == {"where": {"city": "Bern"}, "tags": ["x"]}
    assert (await sent(node, "body", city="Bern", days=2))["body"]["tags"] == [2, "x"]


async def test_a_reply_is_read_by_jmespath(node: Node) -> None:
    assert await sent(node, "jmespath", city="Bern") == {"asked": "Bern", "how": "POST"}
    reply = await node.ask("nothing", "act", "", context={"city": "Bern"})
    assert reply["error_code"] == "UPSTREAM_ERROR"
    assert "'body.nobody.home'" in reply["error"]


async def test_a_reply_that_is_an_image_is_a_part(node: Node) -> None:
    reply = await node.ask("picture", "act", "")
    assert reply["parts"][0]["blob"] == base64.b64encode(PNG).decode()


async def test_the_reason_of_a_refusal_is_read_where_the_manifest_says(node: Node) -> None:
    reply = await node.ask("refused", "act", "")
    assert (reply["error_code"], reply["error"]) == ("UPSTREAM_ERROR", "The agent answered HTTP 404: No such pet")


async def test_attachments_go_where_the_template_wants_them_or_are_noted(node: Node) -> None:
    photo = {"type": "file", "content": base64.b64encode(PNG).decode(), "mime_type": "image/png", "name": "rex.png"}
    kept = await node.ask("files", "act", "look", attachments=[photo])
    assert kept["result"]["body"] == {"files": [photo], "said": "look"}
    assert "notes" not in kept
    lost = await node.ask("body", "act", "", context={"city": "Bern"}, attachments=[photo])
    assert lost["notes"] == ["'rex.png' was not sent: this API cannot carry image content"]


async def test_an_error_in_a_good_reply_or_in_a_stream_is_an_error() -> None:
    async def sorry(x: Exchange) -> None:
        if "text/event-stream" not in x.request.headers["accept"]:
            await x.reply({"error": {"message": "no credit", "code": 7}})
            return
        await x.open_stream()
        await x.send(b'data: {"text": "one"}\n\n')
        await x.send(b"data: " + json.dumps({"error": "no credit"}).encode() + b"\n\n")

    async with agents({**BEHAVIOURS, "sorry": sorry}, takes_get=False) as wild:
        endpoint = {"request": {"say": "$task"}, "token": "text", "error": "error"}
        async with running(manifests=[wild.manifest("sorry", endpoint=endpoint)], config=ALONE) as node:
            plain = await node.ask("sorry", "act")
            events = await node.events("sorry", "act")
    assert (plain["error_code"], plain["error"]) == ("UPSTREAM_ERROR", "no credit")
    assert [event["data"].get("text") for event in events if event["event"] == "token"] == ["one"]
    assert events[-1]["data"]["error"]["message"] == "no credit"


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ({"reply": "choices["}, "neither a JSON pointer nor JMESPath"),
        ({"openapi": False, "include": ["x"]}, "there is none"),
        ({"poll": {"every": 3}}, "unknown field `every`"),
        ({"poll": {"cancel": "EAT"}}, "poll"),
    ],
)
async def test_a_bad_description_makes_the_agent_offline_with_the_reason(endpoint: dict[str, Any], why: str) -> None:
    async with (
        agents(BEHAVIOURS, takes_get=False) as wild,
        running(manifests=[wild.manifest("answer", endpoint=endpoint)]) as node,
    ):
        reply = await node.ask("answer", "act")
    assert reply["error_code"] == "AGENT_OFFLINE"
    assert why in reply["error"]


async def test_an_agent_that_registers_itself_can_neither_name_files_nor_use_jmespath() -> None:
    async with agents(BEHAVIOURS, takes_get=False) as wild:
        for endpoint, why in (({"reply": "a.b"}, "not a JSON pointer"), ({"openapi": "/etc/passwd"}, "by its address")):
            manifest = wild.manifest("answer", endpoint=endpoint)
            async with running(config=ALONE) as node:
                await node.operation("fabric.agent.register", manifest)
                reply = await node.ask("answer", "act")
            assert reply["ok"] is False
            assert why in reply["error"]


async def test_answers_that_a_template_cannot_read_are_typed_errors(node: Node) -> None:
    async with agents(BEHAVIOURS, takes_get=False) as wild:
        manifests = [wild.manifest(name, endpoint={"reply": "length(x)"}) for name in ("answer", "truncated", "nested")]
        manifests += [wild.manifest(name, endpoint={"method": "PUT", "request": {}, "reply": "x"}) for name in _FAULTS]
        async with running(manifests=manifests, config={**ALONE, "limits": {"reply_bytes": 100_000}}) as other:
            for manifest in manifests:
                code = _FAULTS.get(manifest["agent_id"], "UPSTREAM_ERROR")
                reply = await other.ask(manifest["agent_id"], "act", timeout_ms=700 if code == "TIMEOUT" else 60_000)
                assert reply["ok"] is False
                assert reply["error_details"]["agent_id"] == manifest["agent_id"]
                assert reply["error_code"] == code, manifest["agent_id"]


_FAULTS = {
    "hang": "TIMEOUT",
    "reset": "UPSTREAM_ERROR",
    "close_in_body": "UPSTREAM_ERROR",
    "web_page": "UPSTREAM_ERROR",
    "broken_page": "UPSTREAM_ERROR",
    "unavailable": "AGENT_OFFLINE",
    "redirect": "UPSTREAM_ERROR",
    "huge_reply": "UPSTREAM_ERROR",
}


async def test_the_examples_of_the_documentation_are_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "runtimes.md").read_text()
    section = page.split("## `http`", 1)[1].split("\n## ", 1)[0]
    manifests, poll = (yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL))
    context = RuntimeContext(http=OutboundClient(), base=tmp_path)
    for each in [*manifests, {"agent_id": "later", "endpoint": {"uri": "http://127.0.0.1:9", **poll}}]:
        assert build(msgspec.convert(each, Manifest), context)
    for option in HTTPEndpoint.__struct_fields__:
        assert option == "transport" or f"`{option}`" in section
