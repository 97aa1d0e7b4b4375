"""The MCP servers of an agent's configuration (`.mcp.json`), and whether each can be used.

A server with a program is looked at and not started. A server with an address is asked: the node opens a session with
the headers of the configuration and ends it at once, so a credential that is refused, a limit that is reached and a
server that is broken are told apart before the agent is called."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.outbound.port import DeadlineExceeded, HTTPClient, OutboundError, StreamedReply
from a2a_fabric.outbound.sse import is_event_stream, iter_event_data
from a2a_fabric.protocols.mcp.wire import (
    DISCOVER_HEADERS,
    DISCOVER_REQUEST,
    INITIALIZE_REQUEST,
    POST_HEADERS,
    SESSION_HEADER,
)
from a2a_fabric.runtimes.upstream import is_success, read_retry_after

MCP_CONFIG_FILE = ".mcp.json"

ServerStatus = Literal["not_connected", "auth_failed", "rate_limited", "error"]

_MAX_CONFIG_BYTES = 256 * 1024
_MAX_REPLY_BYTES = 1024 * 1024
_MAX_CHECKS = 64  # servers whose last check is remembered
_MAX_REASON = 200  # characters
_TIMEOUT = 5.0
_CONNECT_TIMEOUT = 2.0
_GOOD_SECONDS = 30.0  # a server that could be used is not asked again for so long
_BAD_SECONDS = 300.0  # health remembers for so long that a server could not be used
_PAUSE_SECONDS = 1.0  # after a limit was reached, unless the server says more
_PORTS = {"http": 80, "https": 443}
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")


class ServerProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a server cannot be used; `text` is for the operator. `code` is the HTTP status, if there was one."""

    text: str
    status: ServerStatus = "not_connected"
    code: int | None = None
    retry_after: float | None = None


def describe_server_problem(problem: ServerProblem) -> dict[str, Any]:
    """The details of an error about an MCP server that an agent needs."""
    details = {"needs": "mcp", "mcp_status": problem.status, "status": problem.code, "retry_after": problem.retry_after}
    return {key: value for key, value in details.items() if value is not None}


class AgentEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent's servers start, and which variables they may be given; `granted` None means all of them."""

    folder: Path
    environ: Mapping[str, str]
    granted: frozenset[str] | None = None
    signs_in: bool = False  # the agent may hold credentials of its own for its servers

    def expand(self, text: str) -> str:
        """The text with the values of the variables to which it refers."""
        return _REFERENCE.sub(lambda match: self.environ.get(match[1], (match[2] or ":-")[2:]), text)


def read_mcp_servers(path: Path) -> dict[str, dict[str, Any]] | None:
    """The servers of an MCP configuration by name; None if there is no such file, or it is not one."""
    try:
        with path.open("rb") as file:
            document: Any = msgspec.json.decode(file.read(_MAX_CONFIG_BYTES))
    except (OSError, msgspec.DecodeError):
        return None
    servers = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        return None
    return {name: server for name, server in servers.items() if isinstance(server, dict)}


def list_references(server: Any) -> Iterator[tuple[str, bool]]:
    """The environment variables to which a server's configuration refers, and whether each has a default."""
    if isinstance(server, str):
        yield from ((match[1], match[2] is not None) for match in _REFERENCE.finditer(server))
    elif isinstance(server, dict):
        for inner in server.values():
            yield from list_references(inner)
    elif isinstance(server, list):
        for inner in server:
            yield from list_references(inner)


class ServerChecks:
    """Checks the servers of one agent, and remembers for a short time what they said."""

    def __init__(self, environment: AgentEnvironment, http: HTTPClient) -> None:
        self._environment = environment
        self._http = http
        self._lock = asyncio.Lock()  # calls that come together ask a server once
        self._seen: dict[bytes, tuple[float, ServerProblem | None]] = {}

    async def find_problem(self, server: Mapping[str, Any] | None) -> ServerProblem | None:
        """Why a call cannot use the server; None if it can, as far as one sees without starting it."""
        problem = self._find_config_problem(server)
        if problem is not None or server is None or "command" in server:
            return problem
        key = msgspec.json.encode(server)
        async with self._lock:
            if (seen := self._recall(key)) is not None:
                return seen[1]
            problem = await self._ask(server)
            if len(self._seen) >= _MAX_CHECKS:
                self._seen.clear()
            self._seen[key] = (time.monotonic(), problem)
        return problem

    async def find_health_problem(self, server: Mapping[str, Any] | None) -> ServerProblem | None:
        """Like `find_problem`, without a request: a probe of the agent's health opens no session at its servers."""
        problem = self._find_config_problem(server)
        if problem is not None or server is None or "command" in server:
            return problem
        at, seen = self._seen.get(msgspec.json.encode(server), (0.0, None))
        if seen is not None and time.monotonic() - at < (seen.retry_after or _BAD_SECONDS):
            return seen
        return await self._find_address_problem(self._find_url(server))

    def _recall(self, key: bytes) -> tuple[float, ServerProblem | None] | None:
        """The last check, if it still counts: a server that was fine, or one that wants to be left alone."""
        seen = self._seen.get(key)
        if seen is None:
            return None
        at, problem = seen
        if problem is None:
            seconds = _GOOD_SECONDS
        else:
            seconds = (problem.retry_after or _PAUSE_SECONDS) if problem.status == "rate_limited" else 0.0
        return seen if time.monotonic() - at < seconds else None

    def _find_config_problem(self, server: Mapping[str, Any] | None) -> ServerProblem | None:
        if server is None:
            return ServerProblem(text=f"it is not in {MCP_CONFIG_FILE}")
        environment = self._environment
        for name, has_default in list_references(server):
            if environment.granted is not None and name not in environment.granted:
                return ServerProblem(text=f"the agent may not be given {name}")
            if name not in environment.environ and not has_default:
                return ServerProblem(text=f"the environment variable {name} is not set")
        command = server.get("command")
        if isinstance(command, str):
            program = str(environment.folder / command) if "/" in command else command
            if shutil.which(program, path=environment.environ.get("PATH")) is None:
                return ServerProblem(text=f"its program '{command}' cannot be found")
        elif _parse_address(self._find_url(server)) is None:
            return ServerProblem(text="it has neither a command nor an address")
        return None

    def _find_url(self, server: Mapping[str, Any]) -> str:
        return self._environment.expand(str(server.get("url", "")))

    async def _find_address_problem(self, url: str) -> ServerProblem | None:
        host, port = _parse_address(url) or ("", 0)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return ServerProblem(text="its address does not answer")
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return None

    async def _ask(self, server: Mapping[str, Any]) -> ServerProblem | None:
        """Open a session at the server, in either era of MCP."""
        url = self._find_url(server)
        raw = server.get("headers")
        headers = {
            str(name).lower(): self._environment.expand(str(value))
            for name, value in (raw.items() if isinstance(raw, dict) else ())
        }
        if server.get("type") == "sse":
            problem = await self._send(url, {"accept": "text/event-stream", **headers}, None)
        else:
            problem = await self._begin(url, headers)
        if problem is not None and problem.status == "auth_failed" and not headers:
            if self._environment.signs_in:
                return None  # the agent's own program says whether it is signed in
            text = f"it wants credentials (HTTP {problem.code}), and its configuration has none"
            return msgspec.structs.replace(problem, text=text)
        return problem

    async def _begin(self, url: str, headers: Mapping[str, str]) -> ServerProblem | None:
        problem = await self._send(url, {**POST_HEADERS, **headers}, INITIALIZE_REQUEST)
        if problem is None or problem.status != "error" or (problem.code or 0) >= 500:
            return problem
        has_no_sessions = await self._send(url, {**DISCOVER_HEADERS, **headers}, DISCOVER_REQUEST) is None
        return None if has_no_sessions else problem

    async def _send(
        self, url: str, headers: Mapping[str, str], request: Mapping[str, Any] | None
    ) -> ServerProblem | None:
        body = None if request is None else msgspec.json.encode(request)
        method = "GET" if request is None else "POST"
        session: str | None = None
        try:
            async with self._http.stream(
                method, url, headers=headers, body=body, timeout=_TIMEOUT, limit=_MAX_REPLY_BYTES
            ) as reply:
                problem = _judge_status(reply)
                session = reply.headers.get(SESSION_HEADER)
                if problem is None and request is not None:
                    problem = _judge_reply(await _read_reply(reply))
        except DeadlineExceeded:
            return ServerProblem(text=f"it does not answer within {_TIMEOUT:g} s")
        except OutboundError:
            return ServerProblem(text="its address does not answer")
        if session:
            await self._end_session(url, headers, session)
        return problem

    async def _end_session(self, url: str, headers: Mapping[str, str], session: str) -> None:
        with suppress(OutboundError):
            await self._http.request(
                "DELETE", url, headers={**headers, SESSION_HEADER: session}, timeout=_CONNECT_TIMEOUT, limit=65536
            )


def _parse_address(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        return (parts.hostname, parts.port or _PORTS[parts.scheme]) if parts.hostname else None
    except (ValueError, KeyError):
        return None


def _judge_status(reply: StreamedReply) -> ServerProblem | None:
    status = reply.status
    if is_success(status):
        return None
    if status in (401, 403):
        text = f"it does not accept the credentials of its configuration (HTTP {status})"
        return ServerProblem(text=text, status="auth_failed", code=status)
    if status == 429:
        pause = read_retry_after(reply.headers) or _PAUSE_SECONDS
        text = f"it gets too many requests (HTTP 429); it may be asked again in {pause:g} s"
        return ServerProblem(text=text, status="rate_limited", code=status, retry_after=pause)
    return ServerProblem(text=f"it answered HTTP {status}", status="error", code=status)


async def _read_reply(reply: StreamedReply) -> bytes:
    """The JSON-RPC message of a reply, which may be the first one of a stream."""
    if not is_event_stream(reply.headers):
        return await reply.read()
    async with aclosing(iter_event_data(reply.chunks(), limit=_MAX_REPLY_BYTES)) as events:
        async for data in events:
            if data:
                return data
    return b""


def _judge_reply(body: bytes) -> ServerProblem | None:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = None
    if isinstance(message, dict) and isinstance(message.get("result"), dict):
        return None
    error = message.get("error") if isinstance(message, dict) else None
    reason = error.get("message") if isinstance(error, dict) else None
    explanation = f": {' '.join(reason.split())[:_MAX_REASON]}" if isinstance(reason, str) else ""
    return ServerProblem(text=f"it refused to begin{explanation}" if error else "it does not speak MCP", status="error")
