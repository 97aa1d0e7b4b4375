"""The shipped contract suite of runtimes, against every runtime of the product, each with a real agent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from a2a_fabric import plugins
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Input, bind_arguments
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.testing.runtime_contract import RuntimeCase, RuntimeContract
from a2a_fabric.testing.values import make_call
from a2a_fabric.tools.listing import build_manifests
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.tools.spec import Toolbox
from tests.matrix.agents import KINDS, RUNTIMES
from tests.matrix.door_client import Question

ONE_REPLY = ("agentzero", "http_openapi", "http_plain", "process_oneshot", "tool")  # they send no events
TOOLS = ToolSettings(web_allow=("127.0.0.1",))


def call_for(question: Question, manifest: Manifest) -> Call:
    """As routing hands it on: with its arguments bound."""
    capability = manifest.find_capability(question.capability)
    call = make_call(manifest.agent_id, question.capability, timeout_ms=60_000)
    given = Input(task=question.task or "", context=question.arguments)
    bound = msgspec.structs.replace(given, arguments=bind_arguments(capability, given))
    return msgspec.structs.replace(call, input=bound)


class TestRuntime(RuntimeContract):
    @pytest_asyncio.fixture(params=[kind.name for kind in KINDS])
    async def case(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RuntimeCase]:
        kind = RUNTIMES[request.param]
        async with AsyncExitStack() as stack:
            started = await stack.enter_async_context(kind.started())
            http, web = OutboundClient(), OutboundClient(Guard(allow=TOOLS.web_allow))
            stack.push_async_callback(http.aclose)
            stack.push_async_callback(web.aclose)
            context = RuntimeContext(
                http=http,
                base=tmp_path,
                environ=dict(os.environ),
                mounted={agent.agent_id: agent for agent in started.agents},
                toolbox=Toolbox(TOOLS, tmp_path, web, {}),
            )
            build: Any = plugins.load_runtime(kind.runtime).build
            questions = (kind.typed(), kind.refusing(), kind.sleeping(tmp_path / "note"))
            known = {each["agent_id"]: msgspec.convert(each, Manifest) for each in started.manifests}
            known |= {each.agent_id: each.manifest({"transport": "local"}) for each in started.agents}
            known |= {each.agent_id: each for each in build_manifests(TOOLS)}
            declared = known[questions[0].question.agent]
            first = build(declared, context)
            manifest = await first.describe()
            await first.aclose()
            runtime = build(manifest, context)
            stack.push_async_callback(runtime.aclose)
            go_on = tmp_path / "go_on"
            go_on.touch()
            away = None if kind.runtime == "tool" else known.get(f"{kind.name}-away")
            slow = questions[2]
            yield RuntimeCase(
                runtime=runtime,
                manifest=manifest,
                call=call_for(questions[0].question, manifest),
                answer=questions[0].answer,
                stream_call=None if kind.name in ONE_REPLY else call_for(kind.counting(go_on).question, manifest),
                refused_call=call_for(questions[1], known[questions[1].agent] if kind.name == "tool" else manifest),
                slow_call=call_for(slow, manifest) if slow.agent == manifest.agent_id else None,
                absent=build(away, context) if away is not None else None,
            )
