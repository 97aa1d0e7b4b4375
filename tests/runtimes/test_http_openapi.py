"""The `http` runtime with an OpenAPI document: operations as capabilities of a real API behind a real node."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.fixtures.apis.shop import DOCUMENT, DOCUMENT_2, PNG, app
from tests.fixtures.node import Node, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

PHOTO = {"type": "file", "content": base64.b64encode(PNG).decode(), "mime_type": "image/png", "name": "rex.png"}
KEY = {"X-Key": "env:SHOP_KEY"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop() -> AsyncIterator[str]:
    async with listening(app) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(shop: str) -> AsyncIterator[Node]:
    manifests: list[dict[str, Any]] = [
        {"agent_id": "shop", "endpoint": {"openapi": f"{shop}/shop.yaml", "headers": KEY}},
        {"agent_id": "found", "endpoint": {"uri": f"{shop}/anything", "openapi": True, "include": ["pets"]}},
        {
            "agent_id": "filed",
            "runtime": "http",
            "endpoint": {"uri": f"{shop}/v1", "openapi": DOCUMENT.name, "exclude": ["seen", "delete *", "TELL*"]},
        },
        {"agent_id": "old", "runtime": "http", "endpoint": {"uri": f"{shop}/v1", "openapi": DOCUMENT_2.name}},
    ]
    useless: dict[str, dict[str, Any]] = {
        "lost": {"openapi": DOCUMENT.name},
        "nothing": {"openapi": f"{shop}/v1/pets"},
        "astray": {"openapi": "no-such-file.yaml", "uri": shop},
    }
    for agent_id, endpoint in useless.items():
        manifests.append({"agent_id": agent_id, "endpoint": endpoint, "capabilities": [{"name": "getPet"}]})
    alone = {"routing": {"fallback": False}, "store": "memory:"}
    async with running(manifests=manifests, config=alone, base=DOCUMENT.parent, environ={"SHOP_KEY": "k-1"}) as found:
        for agent_id in ("shop", "found", "filed", "old"):
            await described(found, agent_id)
        yield found


async def described(node: Node, agent_id: str) -> dict[str, Any]:
    """The agent's capabilities by name, once it was asked for them."""
    found: dict[str, Any] = {}

    async def is_known() -> bool:
        agent = (await node.operation("fabric.agent.describe", {"agent_id": agent_id}))["result"]["agent"]
        found.update({each["name"]: each for each in agent["capabilities"]})
        return bool(found)

    await eventually(is_known)
    return found


async def sent(node: Node, capability: str, agent: str = "shop", **arguments: Any) -> Any:
    """What the API was sent."""
    reply = await node.ask(agent, capability, "", **arguments)
    assert reply["ok"], reply
    return reply["result"]


@requirement("001-17")
async def test_every_operation_is_a_capability_described_as_the_document_says(node: Node) -> None:
    found = await described(node, "shop")
    assert list(found) == [
        "listPets", "add-pet", "getPet", "delete_pets_pet_id", "getPicture", "tellStory", "crowded",
        "see", "seeForm", "upload", "raw", "many",
    ]  # fmt: skip
    assert found["listPets"]["description"] == "List the pets."
    assert found["add-pet"]["description"] == "Add a pet. It gets a number."
    assert found["getPet"]["input_schema"] == {
        "type": "object",
        "properties": {"pet_id": {"type": "integer", "minimum": 1, "description": "Its number."}},
        "required": ["pet_id"],
        "additionalProperties": False,
    }
    pet = found["getPet"]["output_schema"]["properties"]
    assert found["listPets"]["output_schema"]["properties"]["result"]["items"]["properties"] == pet
    assert "secret" not in pet
    manifest = node.fabric.registry.catalog.get("shop")
    assert manifest is not None
    assert (manifest.display_name, manifest.version, manifest.description) == ("Pet shop", "1.4", "Pets of all kinds.")
    effects = {each.name: (each.side_effects, each.idempotent) for each in manifest.capabilities}
    assert effects["getPet"] == ("reads", True)
    assert effects["add-pet"] == ("writes", False)
    assert effects["delete_pets_pet_id"] == effects["see"] == ("writes", True)


async def test_schemas_stand_on_their_own_and_end(node: Node) -> None:
    found = await described(node, "shop")
    schema = found["add-pet"]["input_schema"]
    assert schema["required"] == ["name", "kind"]
    properties = schema["properties"]
    assert "id" not in properties
    assert properties["kind"] == {"type": ["string", "null"], "enum": ["dog", "cat", None]}
    assert properties["age"] == {"type": "number", "exclusiveMinimum": 0}
    assert properties["born"]["default"] == "2020-01-01"
    owner = properties["mother"]["properties"]["owner"]["anyOf"][0]
    assert owner["properties"]["pets"]["items"] == {"description": "Another Pet"}
    assert properties["mother"]["properties"]["elsewhere"] == {}
    assert "$ref" not in str(found)


@requirement("001-17")
async def test_arguments_become_a_request_and_json_the_result(node: Node) -> None:
    assert await sent(node, "listPets", context={"kind": ["dog", "bird"]}) == {
        "result": [{"id": 1, "name": "Rex", "kind": "dog"}]
    }
    assert (await sent(node, "getPet", context={"pet_id": 1}))["name"] == "Rex"
    assert await sent(node, "add-pet", context={"kind": "cat", "name": "Mia"}) == {
        "id": 7,
        "kind": "cat",
        "name": "Mia",
    }
    assert await sent(node, "delete_pets_pet_id", context={"pet_id": 2}) == {}
    assert await sent(node, "tellStory") == {"answer": "Es war einmal ein Hündchen."}


async def test_what_is_no_json_and_no_words_is_a_part(node: Node) -> None:
    reply = await node.ask("shop", "getPicture", "", context={"pet_id": 1})
    assert reply["parts"] == [
        {"kind": "image", "mime_type": "image/png", "name": "rex.png", "blob": base64.b64encode(PNG).decode()}
    ]


async def test_parameters_go_where_and_how_the_document_says(node: Node) -> None:
    found = await sent(
        node,
        "see",
        context={
            "where": "a/b ü",
            "matrix": [1, 2],
            "label": ["x", "y"],
            "where_in_query": "here & there",
            "csv": [1, 2],
            "piped": ["a", "b"],
            "deep": {"x": 1, "y": True},
            "flat": {"p": "q"},
            "filter": {"any": ["thing"]},
            "X-Mood": "good",
            "session": "s=1",
            "body": {"where": "in the body"},
        },
    )
    assert found["path"] == "/v1/seen/a%2Fb%20%C3%BC/;matrix=1,2/.x.y"
    assert found["query"] == [
        ["where", "here & there"], ["csv", "1,2"], ["piped", "a|b"], ["deep[x]", "1"], ["deep[y]", "true"],
        ["p", "q"], ["filter", '{"any":["thing"]}'],
    ]  # fmt: skip
    assert found["headers"]["x-mood"] == "good"
    assert found["headers"]["cookie"] == "session=s%3D1"
    assert found["body"] == {"where": "in the body"}
    assert found["method"] == "PUT"


async def test_what_the_manifest_gives_with_every_request_no_caller_is_asked_for(node: Node) -> None:
    found = await described(node, "shop")
    assert not {"X-Key", "Authorization"} & found["see"]["input_schema"]["properties"].keys()
    shown = await sent(node, "see", context={"where": "x", "matrix": [1], "label": ["y"]})
    assert shown["headers"]["x-key"] == "k-1"
    assert "k-1" not in str(await node.operation("fabric.agent.describe", {"agent_id": "shop"}))


async def test_forms_lists_and_bytes_are_written_as_the_document_says(node: Node) -> None:
    form = await sent(node, "seeForm", context={"a": "1 & 2", "b": [3, "x"]})
    assert form["headers"]["content-type"] == "application/x-www-form-urlencoded"
    assert form["body"] == [["a", "1 & 2"], ["b", "3"], ["b", "x"]]
    assert (await sent(node, "many", context={"body": [{"name": "Rex"}]}))["body"] == [{"name": "Rex"}]
    raw = await sent(node, "raw", attachments=[PHOTO])
    assert raw["headers"]["content-type"] == "image/png"
    assert base64.b64decode(raw["body"]) == PNG


@requirement("001-35")
async def test_attachments_are_the_files_of_a_form(node: Node) -> None:
    words = {"type": "data", "content": "some words", "name": "notes.txt"}
    link = {"type": "url", "content": "http://127.0.0.1/x.png", "mime_type": "image/png", "name": "x.png"}
    reply = await node.ask(
        "shop",
        "upload",
        "",
        context={"title": 'a "title"', "tags": ["t1", "t2"], "about": {"x": 1}},
        attachments=[PHOTO, words, link],
    )
    assert reply["result"]["body"] == [
        ["title", 'a "title"'],
        ["tags", "t1"],
        ["tags", "t2"],
        ["about", '{"x":1}'],
        ["photo", {"name": "rex.png", "type": "image/png", "bytes": len(PNG)}],
        ["more", {"name": "notes.txt", "type": "text/plain", "bytes": 10}],
    ]
    assert reply["notes"] == ["'x.png' was not sent: this operation cannot carry image content"]
    given = await sent(node, "upload", context={"title": "t", "photo": PHOTO["content"]})
    assert given["body"][1] == ["photo", {"name": "photo", "type": "application/octet-stream", "bytes": len(PNG)}]


@pytest.mark.parametrize(
    ("capability", "context", "code", "words"),
    [
        ("getPet", {"pet_id": 99}, "UPSTREAM_ERROR", "HTTP 404: No such pet"),
        ("getPet", {}, "BAD_INPUT", "pet_id"),
        ("getPet", {"pet_id": 1, "typo": 1}, "BAD_INPUT", "typo"),
        ("add-pet", {"name": "", "kind": "dog"}, "BAD_INPUT", "name"),
        ("add-pet", {"kind": "dog", "name": "xavier"}, "BAD_INPUT", "name"),
        ("see", {"where": "..", "matrix": [1], "label": ["x"]}, "BAD_INPUT", "where"),
        ("see", {"where": "x", "matrix": [], "label": ["x"]}, "BAD_INPUT", "matrix"),
        ("see", {"where": "x", "matrix": [1], "label": ["x"], "X-Mood": "a\r\nb: c"}, "BAD_INPUT", "X-Mood"),
        ("upload", {"title": "no photo"}, "BAD_INPUT", "photo"),
        ("upload", {"title": "t", "photo": "not base64!"}, "BAD_INPUT", "photo"),
        ("raw", {}, "BAD_INPUT", "file"),
    ],
)
async def test_what_cannot_be_asked_or_is_refused_is_a_typed_error(
    node: Node, capability: str, context: dict[str, Any], code: str, words: str
) -> None:
    reply = await node.ask("shop", capability, "", context=context)
    assert (reply["ok"], reply["error_code"]) == (False, code)
    assert words in reply["error"]
    assert len(reply["error"]) < 500


async def test_a_crowded_server_is_busy_and_only_its_first_words_are_shown(node: Node) -> None:
    reply = await node.ask("shop", "crowded", "")
    assert (reply["error_code"], reply["error_details"]["reason"]) == ("RATE_LIMITED", "busy")
    assert "come back later" in reply["error"]
    assert "Traceback" not in reply["error"]


async def test_the_document_is_found_beside_the_address_and_narrowed_by_tags(node: Node) -> None:
    found = await described(node, "found")
    assert list(found) == ["listPets", "add-pet", "getPet", "delete_pets_pet_id"]
    assert (await sent(node, "getPet", "found", context={"pet_id": 2}))["name"] == "Tom"


async def test_a_file_describes_the_api_at_the_address(node: Node) -> None:
    found = await described(node, "filed")
    assert list(found) == ["listPets", "add-pet", "getPet", "getPicture", "crowded"]
    assert (await sent(node, "getPet", "filed", context={"pet_id": 2}))["name"] == "Tom"


async def test_a_document_of_version_2_serves_as_well(node: Node) -> None:
    found = await described(node, "old")
    assert found["addPet"]["input_schema"]["required"] == ["name"]
    assert found["getPet"]["output_schema"]["required"] == ["name"]
    assert (await sent(node, "getPet", "old", context={"pet_id": 2}))["name"] == "Tom"
    assert (await sent(node, "addPet", "old", context={"name": "Mia"})) == {"id": 7, "name": "Mia"}
    shown = await sent(node, "upload", "old", context={"title": "t", "kinds": ["a", "b"]}, attachments=[PHOTO])
    assert shown["query"] == [["kinds", "a|b"]]
    assert [name for name, _ in shown["body"]] == ["title", "photo"]


@pytest.mark.parametrize(
    ("agent_id", "why"),
    [("lost", "name its address as `uri`"), ("nothing", "not OpenAPI 3"), ("astray", "cannot be read: No such file")],
)
async def test_an_agent_without_a_usable_document_is_offline_and_says_why(node: Node, agent_id: str, why: str) -> None:
    async def is_told() -> bool:
        listed = (await node.operation("fabric.agent.list"))["agents"]
        return any(each["agent_id"] == agent_id and why in each.get("error", "") for each in listed)

    await eventually(is_told)
    reply = await node.ask(agent_id, "getPet", "", context={"pet_id": 1})
    assert reply["error_code"] == "AGENT_OFFLINE"  # nothing was called, so anybody else may be
    assert why in reply["error"]


async def test_credentials_do_not_follow_a_document_to_another_origin(shop: str, tmp_path: Path) -> None:
    caught: list[bytes] = []

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caught.append(await reader.read(1000))
        writer.close()

    elsewhere = await asyncio.start_server(heard, "127.0.0.1", 0)
    port = elsewhere.sockets[0].getsockname()[1]
    text = DOCUMENT.read_text().replace('"/{version}"', f'"http://127.0.0.1:{port}/"')

    async def document(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": text.encode()})

    async with listening(document) as url:
        endpoint = {"openapi": f"{url}/shop.yaml", "headers": {"X-Key": "secret"}}
        manifest = {"agent_id": "fooled", "runtime": "http", "endpoint": endpoint, "capabilities": [{"name": "getPet"}]}
        async with running(manifests=[manifest]) as node:
            reply = await node.ask("fooled", "getPet", "", context={"pet_id": 1})
    elsewhere.close()
    await elsewhere.wait_closed()
    assert (reply["ok"], caught) == (False, [])
    assert "another origin" in reply["error"]
