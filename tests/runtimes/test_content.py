"""Content beyond JSON through the local runtimes and MCP: what is carried, what is noted, what is refused."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, attachment_from_part, ignore_event
from a2a_fabric.core.errors import UpstreamFailed, UpstreamRefused
from a2a_fabric.core.result import Part
from a2a_fabric.runtimes.process.runtime import build
from tests.fixtures.agents.calling import HERE, call_of, context_at, manifest_of
from tests.fixtures.agents.matrix import make
from tests.fixtures.node import PSK, running
from tests.matrix.agents.kind import CONTENT
from tests.runtimes.mcp_bench import Bench, failure_of

NOT_TAKEN = "'dot.png' was not sent: 'act' takes no attachments"
IMAGE = CONTENT[1]
WITH_SCHEMA = Capability(name="act", input_schema={"type": "object", "properties": {"text": {"type": "string"}}})


def sending(capability: str, *parts: Part, task: str = "", **context: Any) -> Call:
    call = call_of(capability, task, **context)
    attachments = tuple(map(attachment_from_part, parts))
    return msgspec.structs.replace(call, input=msgspec.structs.replace(call.input, attachments=attachments))


def printing(code: str, *capabilities: Capability, **endpoint: Any) -> Any:
    """A program that prints; as a one-shot unless it is said otherwise."""
    manifest = manifest_of(*capabilities, command=[sys.executable, "-I", "-S", "-c", code], **endpoint)
    return build(manifest, context_at())


class TestLines:
    async def test_all_kinds_go_both_ways(self) -> None:
        runtime = build(manifest_of(command=[sys.executable, str(HERE / "matrix.py"), "--stdio"]), context_at())
        try:
            await runtime.describe()
            result = await runtime(sending("show", *CONTENT), ignore_event)
            assert result.parts == CONTENT
            refused = await runtime(
                sending("echo", IMAGE, text="a", number=1, ratio=1.0, flag=True, items=[], nested={}), ignore_event
            )
            assert refused.notes == ("'dot.png' was not sent: 'echo' takes no attachments",)
        finally:
            await runtime.aclose()

    async def test_parts_that_are_none_are_a_failure_in_words(self) -> None:
        reply = "dict(id=json.loads(input())['id'], ok=True, parts=['x'])"
        code = f"import json; print(json.dumps({reply}), flush=True); input()"
        runtime = printing(code)
        try:
            failed = await failure_of(runtime(call_of("act"), ignore_event), UpstreamFailed)
            assert "cannot be read" in failed.message
        finally:
            await runtime.aclose()


class TestOneshot:
    async def test_the_plain_contracts_reply_holds_parts(self) -> None:
        reply = {"ok": True, "result": {"n": 1}, "parts": [{"kind": "image", "blob": "aGk="}], "notes": ["cut"]}
        code = f"import json; print(json.dumps({reply!r}))"
        result = await printing(code, protocol="oneshot")(call_of("act"), ignore_event)
        assert (result.data, result.parts, result.notes) == ({"n": 1}, (Part(kind="image", blob="aGk="),), ("cut",))

    async def test_the_plain_contracts_error_is_a_refusal(self) -> None:
        code = 'print(\'{"ok": false, "error": "no cheese"}\')'
        failed = await failure_of(printing(code, protocol="oneshot")(call_of("act"), ignore_event), UpstreamRefused)
        assert failed.message == "no cheese"

    @pytest.mark.parametrize(
        "answer", [{"ok": True}, {"ok": False}, {"ok": True, "count": 3}, {"ok": "yes", "result": {}}]
    )
    async def test_any_other_object_is_the_answer_itself(self, answer: dict[str, Any]) -> None:
        code = f"import json; print(json.dumps({answer!r}))"
        assert (await printing(code, protocol="oneshot")(call_of("act"), ignore_event)).data == answer

    async def test_what_it_has_no_place_for_is_noted(self) -> None:
        by_schema = printing("print(1)", WITH_SCHEMA, protocol="oneshot")
        assert (await by_schema(sending("act", IMAGE), ignore_event)).notes == (NOT_TAKEN,)
        in_words = printing("print(1)", protocol="oneshot", args_as="text")
        result = await in_words(sending("act", IMAGE, task="look"), ignore_event)
        assert result.notes == ("'dot.png' was not sent: plain text cannot carry image content",)


class TestMCP:
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        async with AsyncExitStack() as stack:
            yield Bench(stack, tmp_path)

    @pytest.mark.parametrize("era", ["handshake", "stateless"])
    async def test_between_two_nodes_nothing_is_lost(self, bench: Bench, era: str) -> None:
        """What MCP has no word for is told beside the content, and understood at the other end."""
        async with running(make("far")) as node:
            place = {"uri": f"{node.url}/agents/far/mcp", "headers": {"Authorization": f"Bearer {PSK}"}}
            runtime = bench.runtime(**place, era=era)
            await runtime.describe()
            result = await runtime(sending("show", *CONTENT), ignore_event)
            await runtime.aclose()
        assert [_essence(part) for part in result.parts] == [_essence(part) for part in CONTENT]

    @pytest.mark.parametrize("kind", ["stdio-handshake", "http-stateless"])
    async def test_a_tool_without_a_place_for_attachments_answers_with_a_note(self, bench: Bench, kind: str) -> None:
        runtime = await bench.server(kind)
        for _ in range(2):  # the second time on the shorter way
            result = await runtime(sending("add", IMAGE, a=1, b=2), ignore_event)
            assert result.data == {"sum": 3}
            assert result.notes == ("'dot.png' was not sent: 'add' takes no attachments",)


def _essence(part: Part) -> tuple[Any, ...]:
    return part.kind, part.text, part.data, part.blob, part.mime_type
