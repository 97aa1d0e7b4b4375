"""Clients that send and never read: a node holds next to nothing for them, and gives it back when they leave.

Each test floods a node of its own process from bare sockets and looks at the process's resident memory.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from tests.system.node import Node, running_node, until

CONNECTIONS = 5
FLOOD_SECONDS = 8.0
STALLED_SECONDS = 2.0  # without a byte that the node takes: it has stopped reading
MEGABYTES = 60.0  # more than a node may grow by; the old one grew by 1100 to 1700
BODY = b'{"name":"fabric.health","arguments":{}}'


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


REQUESTS = {
    "pages": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "nowhere": b"GET /n HTTP/1.1\r\nHost: x\r\n\r\n",
    "calls": post("/mcp/call", BODY),
    "MCP": post("/mcp", b'{"jsonrpc":"2.0","id":1,"method":"ping"}'),
    "calls and pages": post("/mcp/call", BODY) + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@contextmanager
def started(folder: Path) -> Iterator[Node]:
    """A node whose parts that start late have started."""
    with running_node(folder, "--quiet") as node:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        headers = {"Authorization": f"Bearer {node.token}", "Content-Type": "application/json"}
        headers["Accept"] = "application/json, text/event-stream"
        with urlopen(Request(f"{node.url}/mcp", json.dumps(body).encode(), headers), timeout=60) as reply:  # noqa: S310
            assert reply.status == 200
            headers["Mcp-Session-Id"] = reply.headers["Mcp-Session-Id"]
            reply.read()
        body = {"jsonrpc": "2.0", "id": 2, "method": "prompts/list"}  # the SDK answers it, and is loaded for that
        with urlopen(Request(f"{node.url}/mcp", json.dumps(body).encode(), headers), timeout=60) as reply:  # noqa: S310
            assert reply.status == 200
            reply.read()
        yield node


def memory(node: Node) -> float:
    """Megabytes that the node's process holds."""
    return int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]) * 4096 / 1e6


def connections(node: Node, stack: ExitStack, count: int = CONNECTIONS) -> list[socket.socket]:
    place = urlsplit(node.url)
    address = (str(place.hostname), place.port or 0)
    opened = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
    for each in opened:
        each.setblocking(False)
    return opened


def flood(sockets: list[socket.socket], request: bytes, look: Callable[[], float]) -> float:
    """Write without reading, until the node takes no more; the most that it held meanwhile."""
    data = request * (1_000_000 // len(request) + 1)
    period = len(data)
    sent = dict.fromkeys(sockets, 0)
    most, began_at = look(), time.monotonic()
    last_at = began_at
    while time.monotonic() - began_at < FLOOD_SECONDS and time.monotonic() - last_at < STALLED_SECONDS:
        _, writable, _ = select.select([], list(sent), [], 0.1)
        for each in writable:
            at = sent[each] % period
            try:
                sent[each] += each.send(data[at : at + 200_000])
                last_at = time.monotonic()
            except BlockingIOError:
                continue
            except OSError:  # the node has closed it: just as good
                del sent[each]
        most = max(most, look())
        if not sent:
            break
    return most


@pytest.mark.parametrize("what", REQUESTS)
def test_pipelined_requests_with_unread_replies_cost_next_to_nothing(tmp_path: Path, what: str) -> None:
    with started(tmp_path) as node, ExitStack() as stack:
        before = memory(node)
        most = flood(connections(node, stack), REQUESTS[what], lambda: memory(node))
        assert most - before < MEGABYTES
        stack.close()
        until(lambda: memory(node) - before < MEGABYTES, "the memory to be given back")
        with urlopen(f"{node.url}/health", timeout=10) as reply:  # noqa: S310  # our own node
            assert reply.status == 200


def test_large_unread_replies_are_not_piled_up(tmp_path: Path) -> None:
    """Each lists all tools: some hundred kilobytes for a request of two hundred bytes."""
    with started(tmp_path) as node, ExitStack() as stack:
        key = f"Authorization: Bearer {node.token}"
        request = post("/mcp/call", b'{"name":"fabric.tool.list","arguments":{}}', key)
        before = memory(node)
        most = flood(connections(node, stack), request, lambda: memory(node))
        assert most - before < MEGABYTES
        stack.close()
        until(lambda: memory(node) - before < MEGABYTES, "the memory to be given back")


def test_a_client_that_reads_at_last_gets_every_reply_in_order(tmp_path: Path) -> None:
    """Nothing is lost or mixed up when a connection stands still and goes on."""
    with started(tmp_path) as node, ExitStack() as stack:
        [client] = connections(node, stack, 1)
        client.settimeout(60)
        count = 10_000  # with replies of more than the kernel keeps for a client that does not read
        bodies = [
            json.dumps({"name": "fabric.agent.describe", "arguments": {"agent_id": f"nr-{number}"}}).encode()
            for number in range(count)
        ]
        key = f"Authorization: Bearer {node.token}"
        data = b"".join(
            post("/mcp/call", body, key) if number % 3 else b"GET /nr-%d HTTP/1.1\r\nHost: x\r\n\r\n" % number
            for number, body in enumerate(bodies)
        )
        sender = Thread(target=client.sendall, args=(data,), daemon=True)
        sender.start()
        sender.join(STALLED_SECONDS)
        read = stack.enter_context(client.makefile("rb"))
        for number in range(count):
            length = 0
            while (line := read.readline().lower()) not in (b"\r\n", b""):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = read.read(length)
            assert f"nr-{number}" in json.loads(body)["error"].replace("'", " ").split(" (")[0].replace("/", "").split()
        sender.join(60)
