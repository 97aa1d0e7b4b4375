"""Writing an agent: schemas from hints, arguments, yields, failures, and serving it over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import aiohttp
import msgspec
import pytest
import uvicorn
from msgspec import Meta

from a2a_fabric.agent import Agent
from a2a_fabric.authoring.contract import BODY_LIMIT
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Attachment, Call, Emit, ignore_event
from a2a_fabric.core.errors import AgentOffline, BadInput, CapabilityNotFound, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.result import Result, artifact, progress, status, token
from a2a_fabric.runtimes.process.runtime import build
from tests.fixtures.agents.calling import HERE, Heard, call_of, context_at, manifest_of, until
from tests.fixtures.agents.everyday import agent as everyday
from tests.marks import requirement


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Shape(msgspec.Struct):
    name: str
    parts: list[Shape] = []


def offering(function: Callable[..., Any], **about: Any) -> Agent:
    agent = Agent("tested")
    agent.capability(name="do", **about)(function)
    return agent


def input_schema(function: Callable[..., Any]) -> dict[str, Any]:
    capability = offering(function).find("do")
    assert capability is not None
    assert capability.input_schema is not None
    return capability.input_schema


async def answer(function: Callable[..., Any], task: str = "", **context: Any) -> dict[str, Any]:
    return (await offering(function)(call_of("do", task, **context), ignore_event)).data


class TestSchemas:
    def test_hints_defaults_and_docstring_make_the_capability(self) -> None:
        agent = Agent("percy", description="Thinks.", tags=["text"])

        @agent.capability(idempotent=True, max_timeout_ms=5000)
        async def reason(task: str, depth: int = 1) -> dict[str, Any]:
            """Think about something.

            More for readers of the code.
            """
            return {"task": task, "depth": depth}

        (capability,) = agent.manifest().capabilities
        assert (capability.name, capability.description) == ("reason", "Think about something.")
        assert (capability.idempotent, capability.max_timeout_ms, capability.streaming) == (True, 5000, False)
        assert capability.input_schema == {
            "type": "object",
            "properties": {"task": {"type": "string"}, "depth": {"type": "integer", "default": 1}},
            "required": ["task"],
        }

    def test_its_name_may_be_given_in_either_way(self) -> None:
        agent = Agent("named")
        agent.capability("first")(lambda task: task)
        agent.capability(name="second", idempotent=True)(lambda task: task)
        assert [each.name for each in agent.manifest().capabilities] == ["first", "second"]

    def test_every_kind_of_hint_has_its_schema(self) -> None:
        def do(
            size: Annotated[int, Meta(ge=1, description="how big")],
            mode: Literal["a", "b"] = "a",
            note: Optional[str] = None,  # noqa: UP045
            points: list[Point] = [],  # noqa: B006
            rest: dict[str, float] | None = None,
            anything: Any = None,
        ) -> None: ...

        schema = input_schema(do)
        assert schema["properties"]["size"] == {"type": "integer", "minimum": 1, "description": "how big"}
        assert schema["properties"]["mode"] == {"enum": ["a", "b"], "default": "a"}
        assert schema["properties"]["points"] == {"type": "array", "items": {"$ref": "#/$defs/Point"}}
        assert schema["$defs"]["Point"]["required"] == ["x"]
        assert schema["required"] == ["size"]

    def test_the_envelope_and_the_emitter_are_no_arguments(self) -> None:
        def do(text: str, envelope: Call, say: Emit) -> None: ...
        def bare(text: str, call, emit) -> None: ...  # type: ignore[no-untyped-def]  # by name alone

        for function in (do, bare):
            assert list(input_schema(function)["properties"]) == ["text"]

    def test_a_parameter_that_only_happens_to_be_called_call_is_an_argument(self) -> None:
        def do(call: str) -> None: ...

        assert list(input_schema(do)["properties"]) == ["call"]

    def test_generators_and_emitters_stream(self) -> None:
        async def agen() -> AsyncIterator[str]:
            yield ""

        def gen() -> Iterator[str]:
            yield ""

        def emits(emit: Emit) -> None: ...
        def plain() -> None: ...

        streaming = [offering(each).manifest().capabilities[0].streaming for each in (agen, gen, emits, plain)]
        assert streaming == [True, True, True, False]

    def test_the_result_schema_comes_from_the_return_hint(self) -> None:
        def words() -> str: ...  # type: ignore[empty-body]
        def point() -> Point: ...  # type: ignore[empty-body]
        def number() -> int: ...  # type: ignore[empty-body]
        def tree() -> Shape: ...  # type: ignore[empty-body]
        def anything() -> dict[str, Any]: ...  # type: ignore[empty-body]

        schemas = [offering(each).manifest().capabilities[0].output_schema for each in (words, point, number, tree)]
        assert schemas[0] == {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
        assert schemas[1] is not None and list(schemas[1]["properties"]) == ["x", "y"]  # noqa: PT018
        assert schemas[2] is not None and list(schemas[2]["properties"]) == ["result"]  # noqa: PT018
        assert schemas[3] is not None and "Shape" in schemas[3]["$defs"]  # noqa: PT018
        assert offering(anything).manifest().capabilities[0].output_schema is None

    def test_what_cannot_be_an_argument_is_refused_where_it_is_written(self) -> None:
        class Odd: ...

        def positional(a: int, /) -> None: ...
        def stars(*a: int) -> None: ...
        def odd(a: Odd) -> None: ...

        odd.__annotations__["a"] = Odd
        for function, word in ((positional, "by name"), (stars, "by name"), (odd, "'a' cannot come from JSON")):
            with pytest.raises(TypeError, match=word):
                offering(function)

    def test_wrong_ids_fields_and_doubles_are_refused_where_they_are_written(self) -> None:
        with pytest.raises(ValueError):
            Agent("no spaces")
        with pytest.raises(ValueError, match="colour"):
            Agent("percy", colour="red")
        with pytest.raises(ValueError, match="colour"):
            offering(print_nothing, colour="red")
        agent = offering(print_nothing)
        with pytest.raises(ValueError, match="already offers"):
            agent.capability(name="DO")(print_nothing)


def print_nothing() -> None: ...


class TestArguments:
    async def test_they_are_decoded_into_their_types(self) -> None:
        def do(point: Point, by: dict[int, str], scale: float = 2) -> dict[str, Any]:
            return {"x": point.x * scale, "by": by[1]}

        assert await answer(do, point={"x": 3}, by={"1": "one"}) == {"x": 6, "by": "one"}

    async def test_the_wrong_one_is_named(self) -> None:
        def do(task: str, depth: int = 1, point: Point | None = None) -> None: ...

        for given, named in (
            ({}, "task"),
            ({"task": 1}, "task"),
            ({"task": "x", "depth": "2"}, "depth"),
            ({"task": "x", "point": {"x": "y"}}, "point.x"),
        ):
            with pytest.raises(BadInput, match=f"'{named}'") as caught:
                await answer(do, **given)
            assert caught.value.details["argument"] == named

    async def test_words_fill_the_task_or_the_only_missing_text(self) -> None:
        def by_task(task: str) -> str:
            return task

        def by_text(text: str, n: int = 1) -> str:
            return text * n

        assert await answer(by_task, "hello") == {"answer": "hello"}
        assert await answer(by_text, "hello", n=2) == {"answer": "hellohello"}

    async def test_a_function_of_task_and_context_gets_both_as_they_are(self) -> None:
        def do(task: str, context: dict[str, Any], attachments: list[Attachment]) -> dict[str, Any]:
            return {"task": task, "context": context, "attachments": len(attachments)}

        agent = offering(do)
        assert agent.manifest().capabilities[0].input_schema is None
        call = call_of("do", "hello", n=1)
        given = msgspec.structs.replace(call.input, attachments=(Attachment(type="url", content="http://x"),))
        result = await agent(msgspec.structs.replace(call, input=given), ignore_event)
        assert result.data == {"task": "hello", "context": {"n": 1}, "attachments": 1}

    async def test_defaults_that_json_cannot_show_still_hold(self) -> None:
        def do(points: tuple[Point, ...] = (Point(1, 2),), note: str = None) -> dict[str, Any]:  # type: ignore[assignment]  # noqa: RUF013
            return {"points": points, "note": note}

        assert await answer(do) == {"points": ({"x": 1, "y": 2},), "note": None}
        assert await answer(do, points=[], note=None) == {"points": (), "note": None}

    async def test_keywords_take_the_rest(self) -> None:
        def do(a: int, **rest: Any) -> dict[str, Any]:
            return rest

        assert await answer(do, a=1, b=2) == {"b": 2}

    async def test_the_envelope_comes_along_when_asked_for(self) -> None:
        async def do(call: Call) -> str:
            return call.trace.trace_id

        call = call_of("do")
        assert (await offering(do)(call, ignore_event)).data == {"answer": call.trace.trace_id}


class TestAnswers:
    @requirement("001-21")
    async def test_what_is_yielded_becomes_events_and_the_last_object_the_result(self) -> None:
        async def do(task: str) -> AsyncIterator[Any]:
            yield "some "
            yield status("running")
            yield {"draft": 1}
            yield progress(120)
            yield None
            yield {"answer": "done"}
            yield "words"

        heard = Heard()
        result = await offering(do)(call_of("do", "x"), heard)
        assert heard.events == [
            token("some "),
            status("running"),
            progress(100),
            artifact({"draft": 1}),
            token("words"),
        ]
        assert result == Result(data={"answer": "done"})

    async def test_without_an_object_the_words_are_the_answer(self) -> None:
        async def async_words() -> AsyncIterator[str]:
            yield "a"
            yield "b"

        def plain_words() -> Iterator[str]:
            yield "a"
            yield "b"

        assert await answer(async_words) == {"answer": "ab"}
        assert await answer(plain_words) == {"answer": "ab"}

    @pytest.mark.parametrize(
        ("returned", "data"),
        [
            ("words", {"answer": "words"}),
            (None, {}),
            ([1, 2], {"result": [1, 2]}),
            (Point(1), {"x": 1, "y": 0}),
            (Result(data={"a": 1}), {"a": 1}),
        ],
    )
    async def test_whatever_is_returned_becomes_an_object(self, returned: Any, data: dict[str, Any]) -> None:
        assert await answer(lambda: returned) == data

    async def test_plain_functions_run_beside_the_loop(self) -> None:
        def do() -> bool:
            return threading.current_thread() is threading.main_thread()

        assert await answer(do) == {"result": False}

    async def test_plain_functions_can_emit_too(self) -> None:
        def do(emit: Callable[[Any], None]) -> str:
            emit("hello")
            emit(progress(10))
            return "done"

        do.__annotations__.clear()
        heard = Heard()
        await offering(do)(call_of("do"), heard)
        assert heard.kinds == ["token", "progress"]

    async def test_a_thread_that_outlives_its_call_cannot_emit_any_more(self) -> None:
        going, went_on, refused = threading.Event(), threading.Event(), threading.Event()

        def do(emit: Any) -> None:
            going.set()
            went_on.wait(10)
            try:
                emit("late")
            except Exception:
                refused.set()

        heard = Heard()
        running = asyncio.ensure_future(offering(do)(call_of("do"), heard))
        await until(going.is_set)
        running.cancel()
        await asyncio.wait([running])
        went_on.set()
        await until(refused.is_set)
        assert heard.events == []

    async def test_cancelling_closes_generators(self) -> None:
        closed: list[str] = []

        async def waits() -> AsyncIterator[str]:
            try:
                yield "up"
                await asyncio.Event().wait()
            finally:
                closed.append("async")

        def steps() -> Iterator[str]:
            try:
                while True:
                    yield "step"
            finally:
                closed.append("plain")

        for function in (waits, steps):
            heard = Heard()
            running = asyncio.ensure_future(offering(function)(call_of("do"), heard))
            await asyncio.wait_for(heard.something.wait(), 30)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        await until(lambda: closed == ["async", "plain"])


class TestFailures:
    async def test_an_unknown_capability_is_answered_with_what_there_is(self) -> None:
        with pytest.raises(CapabilityNotFound, match="it offers: do"):
            await offering(print_nothing)(call_of("dance"), ignore_event)

    async def test_names_match_whatever_their_separators(self) -> None:
        agent = Agent("tested")
        agent.capability(name="parse-recipe")(print_nothing)
        assert (await agent(call_of("Parse_Recipe"), ignore_event)).data == {}

    @pytest.mark.parametrize(
        ("raised", "message"),
        [
            (ValueError("too deep"), "too deep"),
            (TypeError("not that"), "not that"),
        ],
    )
    async def test_a_wrong_value_or_type_that_the_authors_code_raises_is_a_refusal_in_one_sentence(
        self, raised: Exception, message: str
    ) -> None:
        async def inline() -> None:
            raise raised

        with pytest.raises(UpstreamRefused) as caught:
            await offering(inline)(call_of("do"), ignore_event)
        assert caught.value.full_message == message
        assert message not in caught.value.message  # only the operator reads words of an exception

    @pytest.mark.parametrize(
        ("raised", "message"),
        [
            (KeyError("x"), "KeyError: 'x'"),
            (SystemExit(3), "SystemExit: 3"),
            (asyncio.CancelledError(), "The agent gave up its own work"),
        ],
    )
    async def test_anything_else_that_the_authors_code_raises_is_a_failure_in_one_sentence(
        self, raised: BaseException, message: str
    ) -> None:
        async def inline() -> None:
            raise raised

        with pytest.raises(UpstreamFailed) as caught:
            await offering(inline)(call_of("do"), ignore_event)
        assert caught.value.full_message == message

    async def test_the_traceback_is_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        def do() -> None:
            raise RuntimeError("inner secret")

        with pytest.raises(UpstreamFailed):
            await offering(do)(call_of("do"), ignore_event)
        (record,) = [record for record in caplog.records if record.name == "a2a_fabric.agent"]
        assert record.exc_info is not None

    async def test_typed_errors_pass_through(self) -> None:
        def do() -> None:
            raise AgentOffline("the model is loading")

        with pytest.raises(AgentOffline, match="loading"):
            await answer(do)

    async def test_an_answer_that_is_not_json_is_a_failure(self) -> None:
        with pytest.raises(UpstreamFailed, match="not JSON"):
            await answer(lambda: object())


@asynccontextmanager
async def served(agent: Agent) -> AsyncIterator[str]:
    """The agent's app on a real port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(agent.app, log_level="warning", timeout_graceful_shutdown=1))
    with listener:
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


async def events_of(reply: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(b"data: ")) async for line in reply.content if line.strip()]


class TestHTTP:
    async def test_a_call_is_answered_with_result_and_trace(self) -> None:
        async with served(everyday) as url, aiohttp.ClientSession() as http:
            body = {"name": "add", "arguments": {"a": 2, "b": 3}}
            traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            async with http.post(f"{url}/any/path", json=body, headers={"traceparent": traceparent}) as reply:
                said = await reply.json()
            assert (reply.status, said["ok"], said["result"]) == (200, True, {"sum": 5})
            assert said["trace"]["trace_id"] == "0af76519-16cd-43dd-8448-eb211c80319c"
            assert said["trace"]["parent_span_id"].startswith("b7ad6b71-6920-3331")

    async def test_the_trace_in_the_body_wins(self) -> None:
        trace = {"trace_id": "11111111-2222-4333-8444-555555555555", "span_id": "99999999-2222-4333-8444-555555555555"}
        async with served(everyday) as url, aiohttp.ClientSession() as http:
            body = {"name": "add", "arguments": {"a": 2}, "trace": trace}
            async with http.post(url, json=body) as reply:
                said = (await reply.json())["trace"]
        assert (said["trace_id"], said["parent_span_id"]) == (trace["trace_id"], trace["span_id"])

    @requirement("001-21")
    async def test_who_accepts_an_event_stream_gets_tokens_progress_and_a_final_event(self) -> None:
        async with served(everyday) as url, aiohttp.ClientSession() as http:
            body = {"name": "plan", "arguments": {"task": "one two"}}
            async with http.post(url, json=body, headers={"Accept": "text/event-stream"}) as reply:
                assert reply.content_type == "text/event-stream"
                events = await events_of(reply)
        assert [event["event"] for event in events] == ["token", "token", "progress", "final"]
        assert events[0]["data"] == {"text": "one"}
        assert events[-1]["data"]["ok"] is True
        assert events[-1]["data"]["result"] == {"answer": "ONE TWO"}

    async def test_refusals_are_replies_and_end_streams(self) -> None:
        async with served(everyday) as url, aiohttp.ClientSession() as http:
            body = {"name": "fail", "arguments": {"task": "x"}}
            async with http.post(url, json=body) as reply:
                said = await reply.json()
            assert (reply.status, said["ok"]) == (200, False)
            assert said["error"]["code"] == "UPSTREAM_ERROR"
            assert said["error"]["message"].startswith("The agent failed; its operator finds the reason")
            assert said["error"]["details"]["private"] == "KeyError: 'x'"  # the node shows it to its operator
            async with http.post(url, json=body, headers={"Accept": "text/event-stream"}) as reply:
                (final,) = await events_of(reply)
            assert (final["event"], final["data"]["ok"]) == ("final", False)

    async def test_a_gateway_that_does_not_know_the_schema_may_send_task_and_context(self) -> None:
        async with served(everyday) as url, aiohttp.ClientSession() as http:
            for name, arguments, result in (
                ("plan", {"task": "hi", "context": {}}, {"answer": "HI"}),
                ("add", {"task": "", "context": {"a": 2}}, {"sum": 3}),
            ):
                async with http.post(url, json={"name": name, "arguments": arguments}) as reply:
                    assert (await reply.json())["result"] == result

    async def test_get_shows_the_manifest_and_health(self) -> None:
        async with served(everyday) as url, aiohttp.ClientSession() as http:
            async with http.get(f"{url}/agents/everyday") as reply:
                manifest = msgspec.json.decode(await reply.read(), type=Manifest)
            for path in ("/health", "/agents/everyday/health"):
                async with http.get(url + path) as reply:
                    assert await reply.json() == {"status": "ok"}
        assert manifest.endpoint == {"transport": "http", "uri": f"{url}/agents/everyday"}
        assert manifest.capabilities == everyday.manifest().capabilities

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"{", 400), (b"[]", 400), (b'{"name": 3}', 400), (b"{}", 400), (b"\xff", 400), (b"[" * 100_000, 400),
            (b'{"name": "add", "trace": {"trace_id": "x"}}', 400), (b" " * (BODY_LIMIT + 1), 413),
        ],
    )  # fmt: skip
    async def test_what_cannot_be_read_is_refused(self, body: bytes, status: int) -> None:
        async with (
            served(everyday) as url,
            aiohttp.ClientSession() as http,
            http.post(url, data=io.BytesIO(body)) as reply,
        ):
            said = await reply.json()
            assert (reply.status, said["ok"]) == (status, False)
            assert said["error"]["code"] in ("BAD_INPUT", "PAYLOAD_TOO_LARGE")

    async def test_other_methods_are_refused(self) -> None:
        async with served(everyday) as url, aiohttp.ClientSession() as http, http.delete(url) as reply:
            assert reply.status == 405

    @pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
    async def test_a_client_that_goes_away_cancels_its_call(self, accept: str) -> None:
        agent, up, over = Agent("tested"), asyncio.Event(), asyncio.Event()

        @agent.capability
        async def wait() -> None:
            up.set()
            try:
                await asyncio.Event().wait()
            finally:
                over.set()

        async with served(agent) as url, aiohttp.ClientSession() as http:
            asking = asyncio.ensure_future(http.post(url, json={"name": "wait"}, headers={"Accept": accept}))
            await asyncio.wait_for(up.wait(), 30)
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                asking.result().close()
            await asyncio.wait_for(over.wait(), 30)

    async def test_an_answer_that_json_cannot_carry_is_a_refusal(self) -> None:
        agent = offering(lambda: {"n": 2**70, "s": "\ud800"})
        async with served(agent) as url, aiohttp.ClientSession() as http, http.post(url, json={"name": "do"}) as reply:
            said = await reply.json()
        assert (reply.status, said["ok"]) == (200, False)


class TestRunning:
    async def test_it_serves_on_a_port_until_sigterm(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "everyday.py"), "--port", "0", stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
        url = line.split()[-1]
        body = {"name": "add", "arguments": {"a": 1}}
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as reply:
            assert (await reply.json())["result"] == {"sum": 2}
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0

    async def test_a_taken_port_is_said_in_one_line(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(HERE / "everyday.py"), "--port", port, stderr=asyncio.subprocess.PIPE
            )
            _, said = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 1
        assert said.decode().startswith(f"Cannot listen on 127.0.0.1:{port}")

    async def test_requests_piped_in_are_answered_before_it_ends(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "everyday.py"), "--stdio",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        lines = b'{"id": 1, "name": "add", "arguments": {"a": 4}}\nrubbish\n{"id": "x", "name": 5}\n{"name": "add"}'
        out, _ = await asyncio.wait_for(process.communicate(lines), 20)
        said = [json.loads(line) for line in out.splitlines()]
        assert process.returncode == 0
        assert [line["result"] for line in said if line["ok"]] == [{"sum": 5}]
        assert [line["id"] for line in said if not line["ok"]] == [None, "x", None]

    async def test_on_stdio_sigterm_ends_it_and_its_work(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "everyday.py"), "--stdio",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"id": 1, "name": "wait", "arguments": {"note": "/dev/null"}, "stream": true}\n')
        assert json.loads(await asyncio.wait_for(process.stdout.readline(), 20))["event"] == "token"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
        process.stdin.close()


ROOT = HERE.parents[2]
DOCUMENT = (ROOT / "docs" / "writing-an-agent.md").read_text()


class TestExamples:
    """What the how-to page shows is what runs."""

    async def ask(self, *command: str, capability: str, task: str = "", heard: Emit = ignore_event, **more: Any) -> Any:
        endpoint = {"command": list(command), **more.pop("endpoint", {})}
        runtime = build(manifest_of(**endpoint), context_at(ROOT / "examples"))
        try:
            await runtime.describe()
            return (await runtime(call_of(capability, task, stream=True, **more), heard)).data
        finally:
            await runtime.aclose()

    async def test_the_ten_line_agent_greets(self) -> None:
        said = await self.ask(sys.executable, "hello_agent.py", "--stdio", capability="greet", task="Ada", times=2)
        assert said == {"answer": "Hello, Ada! Hello, Ada!"}
        assert (ROOT / "examples" / "hello_agent.py").read_text() in DOCUMENT

    async def test_the_agent_of_the_page_that_takes_pictures_gives_them_back(self, tmp_path: Path) -> None:
        _, framing, *_ = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
        (tmp_path / "framer.py").write_text(framing)
        command = (sys.executable, str(tmp_path / "framer.py"), "--stdio")
        attached = [{"type": "file", "content": "aGk=", "mime_type": "image/png"}, {"type": "data", "content": 1}]
        assert await self.ask(*command, capability="frame", task="red", attachments=attached) == {"framed": 1}

    async def test_the_streaming_agent_of_the_page_streams(self, tmp_path: Path) -> None:
        _, _, streaming, *_ = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
        (tmp_path / "thinker.py").write_text(streaming)
        heard = Heard()
        command = (sys.executable, str(tmp_path / "thinker.py"), "--stdio")
        assert await self.ask(*command, capability="plan", task="go", heard=heard) == {"answer": "GO"}
        assert heard.kinds == ["token", "progress", "token"]

    @pytest.mark.skipif(shutil.which("node") is None, reason="apt-get install nodejs")
    async def test_the_agent_in_another_language_counts_down(self) -> None:
        heard = Heard()
        arguments: dict[str, Any] = {"from": 2}
        said = await self.ask("node", "jsonl_agent.mjs", capability="count_down", heard=heard, **arguments)
        assert said == {"answer": "Lift-off!"}
        assert [event.data["text"] for event in heard.events] == ["2 ", "1 "]

    async def test_the_one_shot_agent_counts_words(self) -> None:
        form = {"protocol": "oneshot", "args_as": "text"}
        said = await self.ask("./oneshot_agent.sh", capability="count", task="one two three", endpoint=form)
        assert said == {"words": 3, "capability": "count"}
