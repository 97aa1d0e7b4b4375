"""The end of a node: not ready first, then the port, then the calls under way. Behind nginx no request is lost."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import subprocess
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from a2a_fabric.stores.migrate import load_migrations
from tests.fixtures.postgres import Server, shared
from tests.fixtures.system_programs import find_program, free_ports, running_program
from tests.system.node import COMMAND, WAIT_TIMEOUT, Node, environment, running_node, until

KEY = "the-key-of-both-nodes"
CALL = {"name": "fabric.tool.math.calculate", "arguments": {"expression": "6*7"}}
CALLERS = 8


def write_config(folder: Path, **limits: float) -> None:
    folder.mkdir(exist_ok=True)
    lines = [f"  {name}: {value}" for name, value in limits.items()]
    (folder / "fabric.yaml").write_text("\n".join(["store: 'memory:'", "agents: []", "limits:", *lines, ""]))


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, Any, str]:
    """Status, JSON, and what the node says about the connection, which stays open."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read()), reply.getheader("connection", "")


def connect(node: Node) -> http.client.HTTPConnection:
    host, _, port = node.url.removeprefix("http://").rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=WAIT_TIMEOUT)


def ask_anew(node: Node, method: str, path: str, body: Any = None) -> tuple[int, Any, str]:
    with closing(connect(node)) as connection:
        return ask(connection, method, path, body)


def test_sigterm_says_not_ready_and_serves_on_before_the_port_closes(tmp_path: Path) -> None:
    write_config(tmp_path, not_ready_seconds=2)
    with running_node(tmp_path, FABRIC_PSK=KEY) as node, closing(connect(node)) as kept:
        assert ask(kept, "POST", "/mcp/call", CALL)[0] == 200
        assert ask(kept, "GET", "/readyz")[1]["status"] == "ready"
        node.signal(signal.SIGTERM)

        def look() -> Any:
            status, page, _ = ask_anew(node, "GET", "/readyz")
            return page if status == 503 else None

        page = until(look, "the node to be not ready")
        assert page["checks"]["doors"] == "closing"
        assert page["reasons"] == ["The node is about to stop"]
        status, reply, connection = ask(kept, "POST", "/mcp/call", CALL)  # on the fast path until now
        assert (status, reply["ok"], connection) == (200, True, "close")
        status, reply, connection = ask_anew(node, "POST", "/mcp/call", CALL)
        assert (status, reply["ok"], connection) == (200, True, "close")
        assert ask_anew(node, "GET", "/livez")[0] == 200
        assert node.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            ask_anew(node, "GET", "/livez")


def test_a_node_waits_by_itself_only_if_something_asks_whether_it_is_ready(tmp_path: Path) -> None:
    write_config(tmp_path, drain_seconds=5)
    with running_node(tmp_path, FABRIC_PSK=KEY) as node:
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
        assert "draining" not in node.said
    with running_node(tmp_path, FABRIC_PSK=KEY) as node:
        assert ask_anew(node, "GET", "/readyz")[0] == 200
        node.signal(signal.SIGTERM)
        until(lambda: "draining: not ready for 5 s" in node.said, "the node to drain")
        node.signal(signal.SIGTERM)  # the second signal does not wait
        assert node.wait() == 0


def write_nginx(folder: Path, port: int, nodes: list[int]) -> Path:
    """As docs/operating.md has it."""
    servers = "\n".join(f"server 127.0.0.1:{each} max_fails=0;" for each in nodes)
    places = "\n".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    path = folder / "nginx.conf"
    path.write_text(f"""
daemon off; pid {folder}/nginx.pid; error_log stderr warn; worker_processes 1;
events {{ worker_connections 512; }}
http {{
    access_log off; {places}
    upstream fabric {{ {servers} keepalive 32; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://fabric;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
        }}
    }}
}}
""")
    return path


async def call_until(url: str, stop: asyncio.Event, outcomes: list[str]) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        while not stop.is_set():
            try:
                async with client.post(f"{url}/mcp/call", json=CALL) as reply:
                    body = await reply.text()
                    outcomes.append("ok" if reply.status == 200 and json.loads(body)["ok"] else body[:200])
            except aiohttp.ClientError as exc:
                outcomes.append(repr(exc))


def has_more(outcomes: list[str], number: int) -> bool:
    return len(outcomes) >= number


async def test_two_rolling_restarts_behind_nginx_lose_no_request(tmp_path: Path) -> None:
    """POSTs, which nginx never repeats once they were sent, over connections that it keeps open to both nodes."""
    nginx = find_program("nginx")
    front, *ports = free_ports(3)
    folders = [tmp_path / "one", tmp_path / "two"]
    config = write_nginx(tmp_path, front, ports)
    with ExitStack() as stack:
        nodes: list[Node] = []
        for folder, port in zip(folders, ports, strict=True):
            # As docs/operating.md says. All connections that nginx keeps are used, and so ended, in this time.
            write_config(folder, not_ready_seconds=2)
            nodes.append(stack.enter_context(running_node(folder, listen=f"127.0.0.1:{port}", FABRIC_PSK=KEY)))
        stack.enter_context(running_program(nginx, "-c", str(config), "-p", str(tmp_path), port=front, folder=tmp_path))
        stop = asyncio.Event()
        outcomes: list[str] = []
        callers = [
            asyncio.ensure_future(call_until(f"http://127.0.0.1:{front}", stop, outcomes)) for _ in range(CALLERS)
        ]
        for number in (0, 1, 0, 1):
            before = len(outcomes)
            nodes[number].signal(signal.SIGTERM)
            assert await asyncio.to_thread(nodes[number].wait) == 0
            starting = running_node(folders[number], listen=f"127.0.0.1:{ports[number]}", FABRIC_PSK=KEY)
            nodes[number] = await asyncio.to_thread(stack.enter_context, starting)
            await asyncio.to_thread(until, partial(has_more, outcomes, before + 100), "a hundred calls")
        stop.set()
        await asyncio.gather(*callers)
    assert [each for each in outcomes if each != "ok"] == []
    assert len(outcomes) >= 400


@pytest.fixture(scope="module")
def postgres() -> Server:
    return shared()


async def test_sigterm_in_the_middle_of_a_migration_leaves_the_schema_as_it_was(
    postgres: Server, tmp_path: Path
) -> None:
    """The node has applied some statements when another session holds up the next one; then the node is stopped.

    Signals that ask for something else than its end do not end it, although it has nothing to do for them yet."""
    address = postgres.database()
    available = load_migrations("postgres")
    known = available[: len(available) // 2]
    blocker = await asyncpg.connect(address)
    await blocker.execute("CREATE SCHEMA a2a_fabric")
    await blocker.execute(
        "CREATE TABLE a2a_fabric.schema_migrations (number integer PRIMARY KEY, name text NOT NULL, "
        "checksum text NOT NULL, applied_at double precision NOT NULL)"
    )
    for each in known:
        await blocker.execute(each.sql)
        await blocker.execute(
            "INSERT INTO a2a_fabric.schema_migrations VALUES ($1, $2, $3, 0)", each.number, each.name, each.checksum
        )
    count = "SELECT count(*) FROM a2a_fabric.schema_migrations"
    waiting = (  # not of other databases; pg_stat_activity would not change within a transaction
        "SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database "
        "WHERE NOT granted AND datname = current_database()"
    )
    starting: subprocess.Popen[bytes] | None = None
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            async with blocker.transaction():
                tables = await blocker.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'a2a_fabric'")
                names = ", ".join(f"a2a_fabric.{row[0]}" for row in tables if row[0] != "schema_migrations")
                await blocker.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
                write_config(tmp_path, drain_seconds=5)
                (tmp_path / "home").mkdir(mode=0o700)
                starting = subprocess.Popen(  # noqa: ASYNC220
                    [*COMMAND, "up", "--listen", "127.0.0.1:0", "--store", address],
                    cwd=tmp_path,
                    env=environment(tmp_path / "home"),
                    stderr=subprocess.DEVNULL,
                )
                while not await blocker.fetchval(waiting):
                    assert starting.poll() is None
                    await asyncio.sleep(0.02)
                for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
                    assert starting.poll() is None
                    starting.send_signal(number)
                assert await asyncio.to_thread(starting.wait, WAIT_TIMEOUT) == -signal.SIGTERM
                assert await blocker.fetchval(count) == len(known)
        with running_node(tmp_path, "--store", address) as node:
            assert await blocker.fetchval(count) == len(available)
            node.signal(signal.SIGTERM)
            assert await asyncio.to_thread(node.wait) == 0
    finally:
        if starting is not None and starting.poll() is None:
            starting.kill()
            starting.wait(WAIT_TIMEOUT)
        await blocker.close()
