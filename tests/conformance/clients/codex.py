"""Codex without a screen, with a stub for its model and the configuration that `a2a-fabric connect codex` writes."""

from __future__ import annotations

import json

from tests.conformance.clients.client import ClientUnderTest
from tests.conformance.clients.place import Place, expect
from tests.conformance.model_apis.responses import ResponsesAPI
from tests.conformance.model_stub import serving_model

_PREFIX = "mcp__fabric__"
_TOOL = f"{_PREFIX}percy_reason"


async def reads_the_program_that_we_write(place: Place) -> None:
    await place.connect("codex")
    (server,) = json.loads((await place.run("mcp", "list", "--json")).stdout)
    expect((server["name"], server["transport"]["type"]) == ("fabric", "stdio"), server)
    await _converse(place, "codex program")


async def reads_the_address_that_we_write(place: Place) -> None:
    await place.connect("codex", "--http")
    (server,) = json.loads((await place.run("mcp", "list", "--json")).stdout)
    expect((server["name"], server["auth_status"]) == ("fabric", "bearer_token"), server)
    await _converse(place, "codex address", FABRIC_TOKEN=place.node.token)


async def _converse(place: Place, task: str, **env: str) -> None:
    async with serving_model(ResponsesAPI(), (_TOOL, {"task": task})) as model:
        words = ("exec", "--json", "--skip-git-repo-check", "--strict-config", "--sandbox", "read-only")
        said = await place.run(*words, *settings(model.url), "Ask percy.", env={"STUB_KEY": "none", **env})
    expect(not model.complaints, model.complaints)
    ours = {name for name in model.offered if name.startswith(_PREFIX)}
    wanted = {_PREFIX + name for name in await place.tools()}
    expect(ours == wanted, f"it shows {sorted(ours)}, and not {sorted(wanted)}: {said.last_words}")
    place.expect_heard(task)
    expect(any(f"percy heard {task}" in answer for answer in model.answers), model.answers)


def settings(model_url: str) -> list[str]:
    provider = {"name": "stub", "base_url": f"{model_url}/v1", "wire_api": "responses", "env_key": "STUB_KEY"}
    settings = {
        "model": "stub",
        "model_provider": "stub",
        **{f"model_providers.stub.{key}": value for key, value in provider.items()},
        "approval_policy": "never",
        "mcp_servers.fabric.default_tools_approval_mode": "approve",
        "mcp_servers.fabric.required": True,  # it begins without servers that take more than a second to start
        "analytics.enabled": False,
        "check_for_update_on_startup": False,
        "features.plugins": False,
        "features.apps": False,
    }
    return [word for key, value in settings.items() for word in ("-c", f"{key}={json.dumps(value)}")]


CODEX = ClientUnderTest(
    package="@openai/codex@0.166.0",
    entry="bin/codex.js",
    checks={
        "lists all tools and calls an agent with what `connect codex` writes": reads_the_program_that_we_write,
        "does so with what `connect codex --http` writes": reads_the_address_that_we_write,
    },
)
