"""`/docs` covers every path that the node serves over HTTP, and what it says of them is true."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import schemathesis
from starlette.routing import Route

from a2a_fabric.demo.percy import percy
from a2a_fabric.doors.a2a.http import A2ARoute
from a2a_fabric.doors.rest.http import PrefixRoute
from tests.console.test_sign_in import SIGN_IN
from tests.doors.door_paths import a2a_paths
from tests.doors.rest_bench import Sleeper
from tests.fixtures.mcp_raw import Session
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.fixtures.openid_provider import OpenIDProvider, openid_provider
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCS = Path(__file__).parents[2] / "docs"
KINDS = ("fabric", "mcp", "directory", "discovery")
REST = {"kind": "rest", "requests_per_minute": None}
A2A = {"kind": "a2a", "push_secret": "the-secret-of-push-0123456789-0123456789"}
DOCUMENTS = ("/openapi.json", "/admin/openapi.json", "/doors/openapi.json")
# Pages for people and their files, and the documents themselves.
PAGES = {
    "/console", "/console/", "/console/{}", "/console/files/{}/{}", "/logins/start", "/logins/callback",
    "/docs", "/mcp/docs", "/mcp/docs/json", *DOCUMENTS,
}  # fmt: skip
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[OpenIDProvider]:
    async with openid_provider() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(provider: OpenIDProvider) -> AsyncIterator[Node]:
    """All doors, an issuer of tokens, and a sign-in."""
    issuer = {"id": "corp", "issuer": provider.url, "audience": ["https://node.example"]}
    config = {
        "doors": [*({"kind": kind} for kind in KINDS), REST, A2A],
        "auth": {"issuers": [issuer]},
        "console": {"sign_in": SIGN_IN},
        "jobs": {"webhook_allow": ["127.0.0.1"]},
    }
    sleeper = Sleeper()
    async with running(percy, sleeper.agent(), config=config) as found:
        provider.client.redirect_uris = [f"{found.url}/console/signed-in"]
        yield found
        sleeper.wake.set()


async def read(node: Node, path: str = "/doors/openapi.json") -> dict[str, Any]:
    reply = await node.send("GET", path, token=None)
    assert reply.status == 200
    document: dict[str, Any] = reply.json
    return document


def blank(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


async def list_described(node: Node) -> set[tuple[str, str]]:
    found = set()
    for name in DOCUMENTS:
        document = await read(node, name)
        prefix = document["servers"][0]["url"].removeprefix(node.url)
        for path, verbs in document["paths"].items():
            whole = "/admin/v1/{}" if prefix == "/admin/v1" else blank(prefix + path)
            found |= {(verb.upper(), whole) for verb in verbs}
    return found


def list_served(node: Node) -> set[str]:
    """The paths of the running application, without the prefix `/v1` under which all of REST is described."""
    app = node.fabric.app
    served = {*app.hot_paths, *app._websockets}
    for route in app._router.routes:
        if isinstance(route, Route):
            served.add(route.path)
        elif isinstance(route, A2ARoute):
            served |= {path.replace("/agents/x", "/agents/{}") for _, path in a2a_paths("x")}
        else:
            assert isinstance(route, PrefixRoute), route  # what it has is 404
    return {blank(path) for path in served}


def list_names(path: str) -> set[str]:
    """Where a document may have this path: REST with its version, A2A 0.3 without it, and `t` and `c` are ids."""
    newer = re.sub(r"^(/gateway|/agents/\{\})/v1/", r"\1/", path)
    return {path, f"/v1{path}", re.sub(r"(?<=/tasks/)t(?=[:/]|$)|(?<=Configs/)c$", "{}", newer)}


async def is_served(node: Node, verb: str, path: str) -> bool:
    """Strangers are refused at most paths, which ends streams; methods that few paths have are tried with the key."""
    token = None if verb in ("GET", "POST") else PSK
    reply = await node.send(verb, path.replace("{}", "x"), token=token)
    is_page = reply.headers.get("content-type", "").startswith("text/html")
    return reply.status != 405 and not is_page and b"Nothing at" not in reply.body


@requirement("004-25")
async def test_every_path_that_the_node_serves_is_described_with_every_method(node: Node) -> None:
    described = await list_described(node)
    missing = [("GET", path) for path in node.fabric.app._websockets if ("GET", path) not in described]
    for path in sorted(list_served(node)):
        if path.removeprefix("/v1") in PAGES:
            continue
        for verb in VERBS:
            known = {(verb, name) for name in list_names(path)}
            if not known & described and await is_served(node, verb, path):
                missing.append((verb, path))
    assert not missing


async def test_a_described_path_is_there_and_is_public_only_if_it_says_so(node: Node) -> None:
    for path, verbs in (await read(node))["paths"].items():
        for verb, operation in verbs.items():
            if "101" in operation["responses"]:
                assert path in node.fabric.app._websockets
                continue
            reply = await node.send(verb.upper(), re.sub(r"\{\w+\}", "x", path), token=None)
            security = operation.get("security")
            if security is None:
                assert reply.status == 401, (verb, path, reply.status)
            elif not security:
                assert reply.status not in (401, 403, 405), (verb, path, reply.status)
            else:  # the settings of the door decide
                assert {} in security


async def test_the_documents_are_valid_openapi_and_fit_on_one_page(node: Node) -> None:
    documents = [await read(node, name) for name in DOCUMENTS]
    schemas: dict[str, Any] = {}
    for document in documents:
        schemathesis.openapi.from_dict(document).validate()
        for name, schema in document["components"]["schemas"].items():
            assert schemas.setdefault(name, schema) == schema
    operations = [each for document in documents for verbs in document["paths"].values() for each in verbs.values()]
    for names in (
        [tag["name"] for document in documents for tag in document["tags"]],
        [operation["operationId"] for operation in operations],
    ):
        assert len(names) == len(set(names))


async def test_each_door_names_a_page_of_the_docs(node: Node) -> None:
    for tag in (await read(node))["tags"]:
        (page,) = re.findall(r"`docs/([\w-]+\.md)`", tag["description"])
        assert (DOCS / page).is_file()


async def test_a_door_that_is_closed_is_not_described() -> None:
    async with running(percy, config={"doors": [REST], "console": {"enabled": False}, "metrics": False}) as node:
        document = await read(node)
        assert [tag["name"] for tag in document["tags"]] == ["rpc", "node"]
        assert not [path for path in document["paths"] if path.startswith(("/mcp", "/a2a", "/agents", "/console"))]


STREAM = "text/event-stream"
ERRORS = {"400", "401", "403", "404", "409", "413", "429", "500", "503"}


async def send_example(node: Node, path: str, verb: str, operation: dict[str, Any], given: dict[str, str]) -> None:
    """Sends the example as the page does."""
    query, headers = {}, {"Authorization": f"Bearer {PSK}"}
    for parameter in operation["parameters"]:
        name = parameter["name"]
        value = given.get(name) or parameter.get("example")
        if value is None:
            assert not parameter["required"], (verb, path, name)
        elif parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", value)
        elif parameter["in"] == "query":
            query[name] = value
        else:
            headers[name] = value
    if any(STREAM in reply.get("content", {}) for reply in operation["responses"].values()):
        headers["Accept"] = STREAM
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    timeout = aiohttp.ClientTimeout(total=WAIT_TIMEOUT)
    if body is not None:  # each message is a new one, and tests send nothing to other machines
        text = json.dumps(body).replace("message-1", secrets.token_hex(8))
        body = json.loads(text.replace("https://example.com/news", f"{node.url}/callbacks/x"))
    more = {} if body is None else {"json": body}
    async with node.client.request(
        verb, node.url + path, params=query, headers=headers, timeout=timeout, **more
    ) as response:
        assert str(response.status) in operation["responses"].keys() - ERRORS, (verb, path, await response.text())
        if response.content_type != STREAM or path.endswith("stream"):  # the other streams go on
            check_success(verb, path, await response.text())


def check_success(verb: str, path: str, text: str) -> None:
    """A reply in JSON, or the events of a stream, of which none tells of an error."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    for reply in [json.loads(line) for line in lines if line.startswith("{")]:
        assert not reply.get("error"), (verb, path, text)
        assert reply.get("ok") is not False, (verb, path, text)
        assert "FAILED" not in state_of(reply), (verb, path, text)


def state_of(reply: dict[str, Any]) -> str:
    """The state of the task that a reply tells of, if it tells of one."""
    told = reply.get("result", reply)
    task = told.get("task", told) if isinstance(told, dict) else {}
    return json.dumps(task.get("status", "") if isinstance(task, dict) else "").upper()


async def make_values(node: Node, stack: AsyncExitStack, path: str, parameters: set[str]) -> dict[str, str]:
    """What only a client that did something before can know: a session, a task, a push config."""
    found = {}
    if "Mcp-Session-Id" in parameters:
        session = await stack.enter_async_context(Session(node, path=path.replace("{agent_id}", "percy")))
        found["Mcp-Session-Id"] = session.headers["Mcp-Session-Id"]
    if "session_id" in parameters:
        stream = await stack.enter_async_context(
            node.client.get(f"{node.url}/sse", headers={"Authorization": f"Bearer {PSK}", "Accept": STREAM})
        )
        await stream.content.readline()
        found["session_id"] = (await stream.content.readline()).decode().strip().rpartition("=")[2]
    if "task_id" in parameters:
        message = {"messageId": secrets.token_hex(8), "role": "ROLE_USER", "parts": [{"text": "Sleeper, sleep"}]}
        body = {"message": message, "configuration": {"returnImmediately": True}}
        where = path.partition("/tasks")[0].replace("{agent_id}", "sleeper")
        headers = {"A2A-Version": "1.0"}
        sent = (await node.send("POST", f"{where}/message:send", json=body, headers=headers)).json
        found |= {"agent_id": "sleeper", "task_id": sent["task"]["id"]}
        if "config_id" in parameters:
            configs = f"{where}/tasks/{found['task_id']}/pushNotificationConfigs"
            made = await node.send("POST", configs, json={"url": f"{node.url}/callbacks/x"}, headers=headers)
            found["config_id"] = made.json["id"]
    return found


# They need an agent that was told an address, and an issuer that sent a browser back: tests of theirs send them.
NOT_SENT = {"/callbacks/{key}", "/console/sign-in/finish"}


async def test_the_examples_work_as_they_stand(node: Node) -> None:
    sent = 0
    for path, verbs in (await read(node))["paths"].items():
        for verb, operation in verbs.items():
            if path in NOT_SENT or "101" in operation["responses"]:
                continue
            required = {each["name"] for each in operation["parameters"] if each["required"]}
            async with AsyncExitStack() as stack:
                values = await make_values(node, stack, path, required)
                await send_example(node, path, verb.upper(), operation, values)
            sent += 1
    assert sent > 80
