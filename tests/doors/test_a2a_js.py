"""The A2A door with the SDK for JavaScript, over JSON-RPC and HTTP+JSON."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.conformance.commands import CommandFailed
from tests.conformance.npm import Npm
from tests.doors.a2a_agents import percy
from tests.fixtures.environments import HOMES
from tests.fixtures.node import PSK, Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

PACKAGE = "@a2a-js/sdk@1.3.0"
PROGRAM = Path(__file__).parent / "a2a_client.mjs"
WAIT_TIMEOUT = 90.0
SUBMITTED, WORKING, COMPLETED, CANCELED, INPUT_REQUIRED = 1, 2, 3, 5, 6


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config={"doors": [{"kind": "a2a"}]}) as node:
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def npm() -> Npm:
    npm = Npm(HOMES)
    try:
        await npm.install(PACKAGE, "package.json", HOMES / "a2a-js")
    except CommandFailed as failed:
        pytest.skip(f"npm install {PACKAGE} does not work here: {str(failed)[:200]}")
    return npm


async def seen_by(npm: Npm, node: Node, binding: str) -> dict[str, Any]:
    arguments = [str(PROGRAM), str(HOMES / "a2a-js"), f"{node.url}/agents/percy", PSK, binding]
    process = await asyncio.create_subprocess_exec(npm.node, *arguments, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(WAIT_TIMEOUT):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    seen: dict[str, Any] = json.loads(out)
    return seen


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_the_javascript_client_sends_streams_answers_and_cancels(npm: Npm, node: Node, binding: str) -> None:
    seen = await seen_by(npm, node, binding)
    assert seen["sent"]["status"]["state"] == COMPLETED
    [part] = seen["sent"]["artifacts"][0]["parts"]
    assert part["content"] == {"$case": "data", "value": {"text": "HELLO", "times": 3}}
    assert seen["got"] == seen["sent"]
    told = [event["payload"] for event in seen["streamed"]]
    words = [each["value"]["artifact"]["parts"][0]["content"]["value"] for each in told if "artifact" in each["value"]]
    assert words == ["one ", "two ", "three ", ""]  # the empty one is the last chunk
    states = [each["value"]["status"]["state"] for each in told if "status" in each["value"]]
    assert states == [SUBMITTED, WORKING, COMPLETED]
    assert seen["asked"]["status"]["state"] == INPUT_REQUIRED
    assert seen["answered"]["status"]["message"]["parts"][0]["content"]["value"] == "Which size?"
    assert seen["cancelled"]["status"]["state"] == CANCELED
    assert "not found" in seen["missing"]
