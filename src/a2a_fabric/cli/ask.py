"""`a2a-fabric ask` and `a2a-fabric chat`: requests in plain words, which the node brings to the agent that fits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from a2a_fabric.cli.call import (
    CallKind,
    StreamedCall,
    parse_context,
    read_attachments,
    read_stdin,
    run_call,
)
from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.follow import LiveOutput
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_json_line, print_line, print_table, remark
from a2a_fabric.client.client import FabricClient
from a2a_fabric.client.wire import CallResult
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.message import new_conversation_id

_TIMEOUT = 60.0
_REQUEST = CallKind(FabricClient.ask, FabricClient.stream_ask)
_ROUTE_KEY = "_fabric"
_PARTS_KEYS = frozenset({"status", "graph_id", "counts", "nodes"})  # of a request for several agents
_SIGNALS_KEY = "signals"  # of the agents, as the node has delivered them
_END_WORDS = ("/quit", "/exit", "/q")

Conversation = Annotated[
    str | None, typer.Option(metavar="ID", help="Any name; requests with the same name are one conversation.")
]
Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", min=0.001, help="Time limit. Default: 60.")]
Why = Annotated[bool, typer.Option("--why", help="Call no agent; show which one would answer, and why.")]


def ask_once(
    request: Annotated[
        list[str], typer.Argument(metavar="REQUEST", help="The request in words; - reads it from stdin.")
    ],
    context: Annotated[str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object.")] = None,
    attach: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A file to send with the request. Repeatable.")
    ] = None,
    conversation: Conversation = None,
    timeout: Timeout = None,
    why: Why = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Ask in plain words: the agent that fits answers.

    Which agent answers, and why, is printed on stderr. Ctrl-C cancels the call.

    Example: a2a-fabric ask "what should I cook tonight?"
    """
    text = read_stdin() if request == ["-"] else " ".join(request)
    node = connect(url, token, timeout or _TIMEOUT)
    if why:
        route = run_request(node, lambda client: client.route_request(text, conversation), as_json=as_json)
        _print_route(route, as_json=as_json)
        return
    arguments: dict[str, Any] = {
        "text": text,
        "context": parse_context(context, []),
        "attachments": read_attachments(attach or []),
        "conversation_id": conversation,
        "timeout": timeout,
    }
    _ask(node, arguments, as_json=as_json, url=url)


def chat(
    conversation: Conversation = None,
    timeout: Timeout = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Talk with the agents of a node, in one conversation.

    Each line is a request. "talk to NAME" holds until "switch back". /quit or Ctrl-D ends the conversation; its
    name is printed, and --conversation continues it. On a pipe, each line of stdin is a request; with --json, each
    answer is one line.

    Example: a2a-fabric chat --conversation kitchen
    """
    conversation_id = conversation or new_conversation_id()
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        remark(f"Conversation {conversation_id}. /quit ends it.")
    has_failed = False
    while (line := _read_line(is_terminal)) is not None:
        text = line.strip()
        if not text:
            continue
        if text in _END_WORDS:
            break
        arguments = {"text": text, "conversation_id": conversation_id, "timeout": timeout}
        try:
            _chat_once(connect(url, token, timeout or _TIMEOUT), arguments, as_json=as_json, url=url)
            has_failed = False
        except FabricError as error:
            has_failed = True
            remark(f"Error: {error.full_message}")
        except typer.Exit:  # the error was printed as JSON
            has_failed = True
        except KeyboardInterrupt:  # cancels this request; the conversation goes on
            continue
    if is_terminal:
        remark(f"Continue with: a2a-fabric chat --conversation {conversation_id}")
    if has_failed and not is_terminal:
        raise typer.Exit(1)


def _read_line(is_terminal: bool) -> str | None:
    """None at the end of the input."""
    if not is_terminal:
        return sys.stdin.readline() or None
    try:
        return input("> ")
    except EOFError:
        print_line()
        return None
    except KeyboardInterrupt:
        print_line()
        return ""


def _chat_once(node: FabricClient, arguments: dict[str, Any], *, as_json: bool, url: str | None) -> None:
    if as_json:
        result = run_request(node, lambda client: client.ask(**arguments), as_json=True)
        print_json_line({"ok": True, "result": result.data, "parts": result.parts})
    else:
        _ask(node, arguments, as_json=False, url=url)


def _ask(node: FabricClient, arguments: dict[str, Any], *, as_json: bool, url: str | None) -> None:
    call = StreamedCall(arguments, _AskOutput(url=url), _REQUEST)
    run_call(node, call, stream=True, trace=False, as_json=as_json)


class _AskOutput(LiveOutput):
    """Shows the route as a remark, and not as a part of the answer."""

    def print_outcome(self, result: CallResult) -> None:
        route = result.data.pop(_ROUTE_KEY, None)
        if result.data.get("switched"):
            print_line(str(result.data["answer"]))
            return
        signals = result.data.get(_SIGNALS_KEY)
        if isinstance(signals, list) and all(isinstance(each, dict) and "signalId" in each for each in signals):
            del result.data[_SIGNALS_KEY]  # notes beside the answer say the same
        if result.data.keys() >= _PARTS_KEYS:  # the answer has those of all parts
            for key in _PARTS_KEYS:
                del result.data[key]
            result.data.pop("error", None)
        super().print_outcome(result)
        if isinstance(route, dict) and route.get("reason"):
            remark(str(route["reason"]))


def _print_route(route: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(route)
        return
    print_line(route["reason"])
    if route["candidates"]:
        rows = [
            (str(each["score"]), each["agent_id"], each["capability"] or "", "; ".join(each["why"][:2]))
            for each in route["candidates"]
        ]
        print_table(("score", "agent", "capability", "why"), rows)
    for part in route.get("parts", ()):
        needs = f" (needs {', '.join(part['depends_on'])})" if part["depends_on"] else ""
        print_line(f"{part['id']}: {part['agent_id']} {part['capability']}{needs}: {part['text']}")
    if route["agent_id"] is None and not route.get("switched"):
        raise typer.Exit(1)
