"""What holds for every request to the REST door: credentials, errors, limits, tags, descriptions, TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema_rs
import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.doors.context import TLSFiles
from a2a_fabric.doors.tls import ServerTLS, build_context
from a2a_fabric.web.server import HttpServer, bind_socket, url_from_socket
from tests.doors.rest_bench import BOB, check_error, mirror, percy, rest, said_to, sent, text, to
from tests.fixtures.certificates import Authority
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with rest(percy(), mirror(), reserved()) as found:
        yield found


def reserved() -> Agent:
    agent = Agent("reserved", trust_tier="local")

    @agent.capability
    async def work() -> str:
        return "done"

    return agent


PATHS = [
    ("GET", "/v1/agents"),
    ("GET", "/agents/percy"),
    ("POST", "/v1/messages"),
    ("POST", "/agents/percy/messages"),
    ("GET", "/v1/messages/x"),
    ("GET", "/conversations/x/messages"),
    ("GET", "/v1/conversations/x/events"),
    ("POST", "/tasks"),
    ("GET", "/v1/tasks"),
    ("GET", "/v1/tasks/x"),
    ("GET", "/v1/tasks/x/status"),
    ("GET", "/v1/tasks/x/events"),
    ("DELETE", "/v1/tasks/x"),
    ("GET", "/v1/inbox"),
]


@requirement("004-01", "004-22", "004-24")
@pytest.mark.parametrize(("verb", "path"), PATHS)
async def test_every_request_needs_credentials(node: Node, verb: str, path: str) -> None:
    body: dict[str, Any] = {"json": {}} if verb == "POST" else {}
    missing = await node.send(verb, path, token=None, **body)
    check_error(missing, 401, "UNAUTHORIZED")
    assert missing.headers["www-authenticate"].startswith("Bearer")
    check_error(await node.send(verb, path, token="wrong-token", **body), 401, "UNAUTHORIZED")


@requirement("004-22")
async def test_a_bearer_token_or_a_key_in_its_own_header_are_taken(node: Node) -> None:
    assert (await node.send("GET", "/v1/agents", token=BOB)).status == 200
    assert (await node.send("GET", "/v1/agents", token=None, headers={"X-API-Key": BOB})).status == 200


@requirement("004-24")
async def test_what_a_caller_may_not_do_is_forbidden_and_what_it_may_not_see_is_not_there() -> None:
    keys = [{"id": "reader", "key": "the-key-of-a-reader", "scopes": ["agent:mirror"]}]
    async with rest(
        percy(), reserved(), auth={"keys": [*keys, {"id": "g", "key": "the-key-of-g", "trust": "org"}]}
    ) as node:
        body = {"agentId": "percy", "input": {"text": "x"}}
        check_error(await node.send("POST", "/v1/tasks", json=body, token="the-key-of-a-reader"), 403, "FORBIDDEN")
        check_error(await node.send("GET", "/v1/agents/reserved", token="the-key-of-g"), 404, "NOT_FOUND")
        listed = (await node.send("GET", "/v1/agents", token="the-key-of-g")).json["agents"]
        assert "reserved" not in [card["id"] for card in listed]


@requirement("004-23", "004-24", "004-29")
async def test_every_failure_has_the_document_s_body(node: Node) -> None:
    json = {"Content-Type": "application/json"}
    check_error(await node.send("POST", "/v1/tasks", data=b"{", headers=json), 400, "INVALID_REQUEST", issue="not JSON")
    check_error(await node.send("POST", "/v1/tasks", data=b"[]", headers=json), 400, "INVALID_REQUEST")
    check_error(await node.send("POST", "/v1/tasks", data=b"\xff", headers=json), 400, "INVALID_REQUEST")
    check_error(await node.send("POST", "/v1/tasks", data=b"a=b"), 415, "INVALID_REQUEST")
    check_error(await node.send("GET", "/v1/nothing/here"), 404, "NOT_FOUND")
    wrong = await node.send("PUT", "/v1/tasks", json={})
    check_error(wrong, 405, "INVALID_REQUEST")
    assert wrong.headers["allow"] == "GET, POST"
    required = await node.send("POST", "/v1/tasks", json={"input": {}})
    check_error(required, 400, "INVALID_REQUEST", field="agentId", issue="required")

    async def is_logged() -> bool:
        return all(reply.headers["x-trace-id"] in node.log.getvalue() for reply in (wrong, required))

    await eventually(is_logged)


@requirement("004-29")
async def test_a_mistake_of_ours_leaks_nothing() -> None:
    agent = Agent("odd")

    @agent.capability
    async def answer() -> Any:
        return {"not": object()}

    async with rest(agent) as node:
        message = await sent(node, to("odd", text("x")))
        reply = await node.send("GET", f"/v1/messages/{message['id']}/reply?wait=20")
        error = check_error(reply, 502, "INTERNAL_ERROR")
        assert "Traceback" not in str(error)


@requirement("004-31")
async def test_who_asks_too_often_is_told_to_wait_and_everybody_how_much_is_left() -> None:
    async with rest(percy(), door={"requests_per_minute": 3}) as node:
        left = []
        for _ in range(3):
            reply = await node.send("GET", "/v1/agents")
            assert reply.status == 200
            left.append(int(reply.headers["x-ratelimit-remaining"]))
            assert reply.headers["x-ratelimit-limit"] == "3"
            assert 0 < int(reply.headers["x-ratelimit-reset"]) <= 60
            assert reply.headers["ratelimit-policy"] == '"default";q=3;w=60'
            assert reply.headers["ratelimit"].startswith(f'"default";r={left[-1]};t=')
        assert left == [2, 1, 0]
        refused = await node.send("POST", "/v1/messages", json=to("percy", text("x")))
        check_error(refused, 429, "RATE_LIMITED")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining"] == "0"
        assert (await node.send("GET", "/v1/agents", token=BOB)).status == 200  # others are others
        assert (await node.send("POST", "/", json={"jsonrpc": "2.0", "method": "discover"})).status == 429


async def test_what_has_not_changed_is_not_sent_again(node: Node) -> None:
    message = await sent(node, to("percy", text("x")))
    await said_to(node, message)
    path = f"/v1/conversations/{message['metadata']['conversation_id']}/messages"
    first = await node.send("GET", path)
    tag = first.headers["etag"]
    for given in (tag, f'"other", W/{tag}', "*"):
        again = await node.send("GET", path, headers={"If-None-Match": given})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert (await node.send("GET", path, headers={"If-None-Match": '"other"'})).status == 200
    await said_to(node, await sent(node, to("percy", text("y"), metadata=message["metadata"] | {"delivery": None})))
    changed = await node.send("GET", path, headers={"If-None-Match": tag})
    assert (changed.status, changed.headers["etag"] != tag) == (200, True)


async def test_agents_are_listed_a_page_at_a_time(node: Node) -> None:
    first = await node.send("GET", "/v1/agents?limit=2")
    assert [card["id"] for card in first.json["agents"]] == ["mirror", "percy"]
    assert 'rel="next"' in first.headers["link"]
    rest_of = await node.send("GET", f"/v1/agents?limit=2&cursor={first.json['nextCursor']}")
    assert [card["id"] for card in rest_of.json["agents"]] == ["reserved"]
    assert rest_of.json["nextCursor"] is None
    found = await node.send("GET", "/v1/agents?capability=Shout")
    assert [card["id"] for card in found.json["agents"]] == ["percy"]
    check_error(await node.send("GET", "/v1/agents?limit=many"), 400, "INVALID_REQUEST", field="limit")


async def test_head_is_get_without_the_body(node: Node) -> None:
    reply = await node.send("HEAD", "/v1/agents/percy")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["etag"]


@requirement("004-25", "004-27")
async def test_the_description_is_openapi_and_true(node: Node) -> None:
    """What the node answers follows the schemas that it publishes."""
    described = (await node.send("GET", "/openapi.json", token=None)).json
    assert described["openapi"] == "3.1.0"
    assert described["info"]["version"] == "1.0.0"
    assert described["servers"] == [{"url": f"{node.url}/v1"}]
    schemas = described["components"]["schemas"]

    def check(name: str, value: Any) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        jsonschema_rs.validate(schema, value)

    check("AgentCards", (await node.send("GET", "/v1/agents")).json)
    check("AgentCard", (await node.send("GET", "/v1/agents/percy")).json)
    message = await sent(node, to("percy", text("x")))
    check("Message", message)
    check("Message", await said_to(node, message))
    conversation = message["metadata"]["conversation_id"]
    check("Messages", (await node.send("GET", f"/v1/conversations/{conversation}/messages")).json)
    task = (await node.send("POST", "/v1/tasks", json={"agentId": "percy", "input": {"text": "x"}})).json
    check("Task", task)
    check("TaskState", (await node.send("GET", f"/v1/tasks/{task['id']}/status")).json)
    check("Tasks", (await node.send("GET", "/v1/tasks")).json)
    check("Error", (await node.send("GET", "/v1/tasks/none")).json)
    for path, verbs in described["paths"].items():
        for verb in verbs:
            reply = await node.send(verb.upper(), f"/v1{path}".replace("{", "").replace("}", ""), token=None)
            assert reply.status == 401, (verb, path)  # it is there


async def test_the_description_can_be_browsed_without_any_other_site(node: Node) -> None:
    page = await node.send("GET", "/docs", token=None)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"http://" not in page.body
    assert b"https://" not in page.body.replace(b"https?:", b"")
    assert b"innerHTML" not in page.body
    for old, new in (("/mcp/docs", "/docs"), ("/mcp/docs/json", "/openapi.json")):
        moved = await node.send("GET", old, token=None)
        assert (moved.status, moved.headers["location"]) == (301, new)


async def test_many_agents_with_slashes_in_their_names_are_reached_below_the_version(node: Node) -> None:
    check_error(await node.send("GET", "/v1/agents/lab%2Fpercy"), 404, "NOT_FOUND", agent_id="lab/percy")
    check_error(
        await node.send("POST", "/v1/agents/lab%2Fpercy/messages", json={"parts": [text("x")]}), 404, "NOT_FOUND"
    )


@contextmanager
def certified(folder: Path) -> Iterator[tuple[dict[str, str], ssl.SSLContext]]:
    authority = Authority()
    key, certificate_of = authority.vouch_for("127.0.0.1")
    (folder / "key.pem").write_bytes(key)
    (folder / "cert.pem").write_bytes(certificate_of)
    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    yield {"cert": "cert.pem", "key": "key.pem"}, trusting


@asynccontextmanager
async def over_tls(node: Node, tls: Any, base: Path) -> AsyncIterator[str]:
    listener = bind_socket("127.0.0.1", 0, exact_port=True)
    server = HttpServer(
        node.fabric.app,
        [listener],
        drain_timeout=1,
        connections=100,
        tls=ServerTLS(TLSFiles(cert=base / tls.cert, key=base / tls.key)),
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield url_from_socket(listener, is_secure=True)
    finally:
        server.should_exit = True
        async with asyncio.timeout(WAIT_TIMEOUT):
            await serving


@requirement("004-30")
async def test_everything_travels_over_tls_if_the_node_has_a_certificate(tmp_path: Path) -> None:
    with certified(tmp_path) as (tls, trusting):
        async with (
            rest(percy(), tls=tls, base=tmp_path, store="memory:") as node,
            over_tls(node, node.fabric.config.tls, tmp_path) as url,
            aiohttp.ClientSession() as client,
        ):
            headers = {"Authorization": f"Bearer {PSK}"}
            async with client.get(f"{url}/v1/agents/percy", headers=headers, ssl=trusting) as reply:
                assert (reply.status, url[:8]) == (200, "https://")
                assert (await reply.json())["endpoint"] == f"{url}/v1/agents/percy"
            async with client.post(
                f"{url}/v1/messages", json=to("percy", text("x")), headers=headers, ssl=trusting
            ) as reply:
                assert reply.status == 201
            with pytest.raises(aiohttp.ClientError):
                await client.get(url.replace("https", "http") + "/v1/agents", headers=headers)
            with pytest.raises(aiohttp.ClientError):
                await client.get(f"{url}/v1/agents", headers=headers)  # its authority is unknown


async def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with certified(tmp_path) as (tls, _):
        (tmp_path / "cert.pem").write_text("no certificate")
        with pytest.raises(ConfigError, match=r"tls: .*cert\.pem"):
            build_context(TLSFiles(cert=tmp_path / tls["cert"], key=tmp_path / tls["key"]))
    with pytest.raises(ConfigError, match=r"tls: .*nowhere\.pem"):
        build_context(TLSFiles(cert=tmp_path / "nowhere.pem", key=tmp_path / "key.pem"))
