"""The MCP Inspector on the command line: over HTTP with the node's key, and over stdio through `a2a-fabric mcp`."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.clients.client import ClientUnderTest
from tests.conformance.clients.place import Place, expect
from tests.system.node import COMMAND

ERAS = ("legacy", "modern")
_MEANS_TOOL_ERROR = 5


async def lists_tools(place: Place) -> None:
    for era in ERAS:
        listed = await _over_http(place, era, "tools/list")
        names = {tool["name"] for tool in listed["tools"]}
        expect(names == await place.tools(), f"{era}: {sorted(names)}")


async def finds_schemas_portable(place: Place) -> None:
    """With --strict it fails if a schema is one that some client or model cannot take."""
    await place.run("--cli", *_http(place), "--method", "tools/list", "--strict")


async def calls_with_arguments(place: Place) -> None:
    for era in ERAS:
        result = await _over_http(place, era, *_reason(f"inspector {era}"))
        expect(result["structuredContent"] == {"answer": f"percy heard inspector {era}", "depth": 3}, result)
        place.expect_heard(f"inspector {era}")


async def shows_what_is_refused(place: Place) -> None:
    words = ("--method", "tools/call", "--tool-name", "percy_reason", "--tool-arg", "depth=3")
    said = await place.run("--cli", *_http(place), *words, may_fail=True)
    expect(said.code == _MEANS_TOOL_ERROR, said.last_words)
    expect(json.loads(said.stdout)["structuredContent"]["error"]["code"] == "BAD_INPUT", said.stdout)


async def lists_resources(place: Place) -> None:
    listed = await _over_http(place, "legacy", "resources/list")
    expect([each["uri"] for each in listed["resources"]] == ["fabric://agents/percy"], listed)
    read = await _over_http(place, "legacy", "resources/read", "--uri", "fabric://agents/percy")
    expect(json.loads(read["contents"][0]["text"])["agent_id"] == "percy", read)


async def is_kept_out_without_the_key(place: Place) -> None:
    words = ("--transport", "http", "--stored-auth-only", "--method", "tools/list")
    said = await place.run("--cli", f"{place.node.url}/mcp", *words, may_fail=True)
    expect(said.code != 0 and "auth_required" in said.stderr, said.last_words)


async def works_over_stdio(place: Place) -> None:
    names = {tool["name"] for tool in (await _over_stdio(place, "tools/list"))["tools"]}
    expect(names == await place.tools(), sorted(names))
    result = await _over_stdio(place, *_reason("inspector stdio"))
    expect(result["structuredContent"]["answer"] == "percy heard inspector stdio", result)
    place.expect_heard("inspector stdio")
    listed = await _over_stdio(place, "resources/list")
    expect([each["uri"] for each in listed["resources"]] == ["fabric://agents/percy"], listed)


def _http(place: Place) -> list[str]:
    return [f"{place.node.url}/mcp", "--transport", "http", "--header", f"Authorization: {place.bearer}"]


def _reason(task: str) -> tuple[str, ...]:
    return ("tools/call", "--tool-name", "percy_reason", "--tool-arg", f"task={task}", "depth=3")


async def _over_http(place: Place, era: str, method: str, *words: str) -> Any:
    said = await place.run("--cli", *_http(place), "--protocol-era", era, "--method", method, *words)
    return json.loads(said.stdout)


async def _over_stdio(place: Place, method: str, *words: str) -> Any:
    home = f"FABRIC_HOME={place.node.home}"
    said = await place.run("--cli", "-e", home, "--method", method, *words, "--", *COMMAND, "mcp")
    return json.loads(said.stdout)


INSPECTOR = ClientUnderTest(
    package="@modelcontextprotocol/inspector@2.12.0",
    entry="clients/launcher/build/index.js",
    checks={
        "lists the node's tools over HTTP, in both eras": lists_tools,
        "finds no schema that a client could not take": finds_schemas_portable,
        "calls an agent with arguments over HTTP, in both eras": calls_with_arguments,
        "shows what the node refuses": shows_what_is_refused,
        "lists and reads the node's resources": lists_resources,
        "is kept out without the key": is_kept_out_without_the_key,
        "lists and calls over stdio, through `a2a-fabric mcp`": works_over_stdio,
    },
)
