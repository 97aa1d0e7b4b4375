"""`a2a-fabric call`"""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.completion import agent_ids, capabilities
from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.cli.screen import Screen
from a2a_fabric.client.client import FabricClient
from a2a_fabric.client.values import CallResult
from a2a_fabric.core.errors import UpstreamInterrupted

_STDIN_BYTES = 4 * 1024 * 1024


def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.", autocompletion=agent_ids)],
    capability: Annotated[
        str, typer.Argument(metavar="CAPABILITY", help="What it shall do.", autocompletion=capabilities)
    ],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task in words; - reads them from stdin.")] = "",
    context: Annotated[str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="One argument: JSON if it is, else text. Repeatable."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, help="How long to wait.")] = 60.0,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show the answer while it is made.")] = True,
    trace: Annotated[bool, typer.Option("--trace", help="Print the trace id on stderr.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Ask an agent, and watch it work.

    Example: a2a-fabric call percy reason "What is 12 * 7 + 16?"
    """
    asked: dict[str, Any] = {
        "agent_id": agent,
        "capability": capability,
        "task": _stdin() if task == "-" else task,
        "context": _context(context, arg or []),
        "timeout": timeout,
    }
    screen = Screen()

    async def question(node: FabricClient) -> CallResult:
        return await (_streamed(node, asked, screen) if stream and not as_json else node.call(**asked))

    try:
        result = ask(connect(url, token, timeout), question, as_json=as_json)
    except KeyboardInterrupt:
        screen.end()
        remark("Cancelled.")
        raise
    finally:
        screen.end()
    if as_json:
        print_json(
            {"ok": True, "trace": result.trace, "result": result.data, "error": None, "fallback": result.fallback}
        )
        return
    _show(result, screen.words)
    _remarks(result, trace)


async def _streamed(node: FabricClient, asked: dict[str, Any], screen: Screen) -> CallResult:
    async with aclosing(node.stream(**asked)) as events:
        async for event in events:
            if event.kind == "final":
                return CallResult(data=event.data, trace=event.trace, fallback=event.fallback)
            screen.show(event)
    raise UpstreamInterrupted("The stream ended before the answer was there")


def _show(result: CallResult, already: str) -> None:
    """The answer, unless its words are on the screen already; then whatever else the agent said."""
    rest = dict(result.data)
    answer = rest.get("answer")
    if isinstance(answer, str):
        del rest["answer"]
        if answer.strip() != already.strip():
            print_line(answer)
    for name, value in rest.items():
        print_line(f"{name}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}")


def _remarks(result: CallResult, trace: bool) -> None:
    if result.fallback is not None:
        used = result.fallback
        how = f" ({used.degraded})" if used.degraded else ""
        remark(f"Answered by {used.used} instead of {used.requested}{how}: {used.reason}.")
    if trace:
        remark(f"trace {result.trace.trace_id}")


def _context(given: str | None, pairs: list[str]) -> dict[str, Any] | None:
    context: Any = {}
    if given is not None:
        try:
            context = msgspec.json.decode(given.encode("utf-8", "surrogateescape"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise typer.BadParameter(f"not JSON: {exc}", param_hint="--context") from exc
        if not isinstance(context, dict):
            raise typer.BadParameter("not a JSON object", param_hint="--context")
    for pair in pairs:
        name, is_pair, value = pair.partition("=")
        if not name or not is_pair:
            raise typer.BadParameter(f"'{pair}' is not NAME=VALUE", param_hint="--arg")
        context[name] = _value(value)
    return context or None


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text


def _stdin() -> str:
    words = sys.stdin.buffer.read(_STDIN_BYTES + 1)
    if len(words) > _STDIN_BYTES:
        raise typer.BadParameter(f"stdin holds more than {_STDIN_BYTES} bytes", param_hint="TASK")
    try:
        return words.decode()
    except UnicodeDecodeError as exc:
        raise typer.BadParameter("stdin is not UTF-8 text", param_hint="TASK") from exc
