"""Gemini CLI: it connects to the servers of its configuration to list them."""

from __future__ import annotations

from tests.conformance.clients.client import ClientUnderTest
from tests.conformance.clients.place import Place, expect

_TRUSTING = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}  # in other folders it starts no server


async def reads_the_program_that_we_write(place: Place) -> None:
    await place.connect("gemini")
    await _expect_listed(place, "(stdio) - Connected")


async def reads_the_address_that_we_write(place: Place) -> None:
    await place.connect("gemini", "--http")
    await _expect_listed(place, "(http) - Connected", FABRIC_TOKEN=place.node.token)
    await _expect_listed(place, "(http) - Disconnected", FABRIC_TOKEN="wrong")


async def _expect_listed(place: Place, state: str, **env: str) -> None:
    said = await place.run("mcp", "list", env={**_TRUSTING, **env})
    lines = (said.stdout + said.stderr).splitlines()
    line = next((line for line in lines if " fabric: " in line), said.last_words)
    expect(state in line, line)


GEMINI = ClientUnderTest(
    package="@google/gemini-cli@0.61.0",
    entry="bundle/gemini.js",
    checks={
        "connects with what `connect gemini` writes": reads_the_program_that_we_write,
        "connects with what `connect gemini --http` writes, and not with a wrong key": reads_the_address_that_we_write,
    },
)
