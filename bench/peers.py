"""Other proxies in front of the same MCP server, each as it comes and tuned, beside the bare forwarder and our node.

Each has a virtual environment of its own. One after the other is started and measured in rounds that alternate with
those of the bare forwarder and of our node, so that none pays for the background work of another. One that cannot be
installed or does not answer is a line that says why.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import load_native, mcp_rows, processes
from bench.load import RequestPlan
from bench.mcp_wire import handshake, stateless
from bench.processes import TOKEN, Cores, ServerProcess
from bench.rows import Effort, Row, alternate, print_table, require_ready, why_not_ready
from tests.fixtures.environments import NotInstalled, python_of

_CONTEXTFORGE_USER = "admin@example.com"
_CONTEXTFORGE_TUNED = {
    "USE_STATEFUL_SESSIONS": "true",  # keeps a session to the server for each session of a client
    "LOG_LEVEL": "CRITICAL",
    **dict.fromkeys(
        (
            "STRUCTURED_LOGGING_ENABLED",
            "PERFORMANCE_TRACKING_ENABLED",
            "DB_METRICS_RECORDING_ENABLED",
            "SECURITY_HEADERS_ENABLED",
            "COMPRESSION_ENABLED",
            "CORRELATION_ID_ENABLED",
            "TOKEN_USAGE_LOGGING_ENABLED",
            "CSRF_ENABLED",
            "HEADER_SIZE_VALIDATION_ENABLED",
        ),
        "false",
    ),
}
_NGINX = """\
user {user};
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  access_log {access_log};
  upstream server {{ server 127.0.0.1:{upstream}; {keepalive} }}
  server {{
    listen 127.0.0.1:{port};
    {client_options}
    location / {{ proxy_pass http://server; {proxy_options} }}
  }}
}}
"""


@dataclass(frozen=True)
class Upstream:
    port: int
    core: int | None  # of a server on stdio

    @property
    def stateless_uri(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def handshake_uri(self) -> str:
        """Knows the handshake only and answers with events, as most servers do."""
        return f"http://127.0.0.1:{self.port}/events"


Start = Callable[[Upstream, int | None], AbstractContextManager[Row]]


def run(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(processes.mcp_server(cores.load))
        upstream = Upstream(server.port, cores.load)
        forwarder = processes.module("bench.mcp_forwarder", upstream.stateless_uri, core=cores.gateway)
        bare = mcp_rows.bare_row(stack.enter_context(forwarder))
        agents = mcp_rows.manifests(upstream.stateless_uri, cores.load)
        ours = [bare, *_our_rows(stack.enter_context(processes.node(agents, cores.gateway)))]
        require_ready(runner, ours)
        theirs, absent = [], {}
        for name, make_start in _PEERS.items():
            try:
                with make_start(name)(upstream, cores.gateway) as row:
                    if why := runner.run(why_not_ready(row)):
                        absent[name] = f"does not answer: {why}"
                        continue
                    runner.run(alternate([*ours, row], effort))
                    theirs.append(row)
            except NotInstalled as exc:
                absent[name] = f"cannot be installed: {' '.join(str(exc).split())}"
    _show([*ours, *theirs], bare, absent)


def _show(rows: list[Row], bare: Row, absent: dict[str, str]) -> None:
    print_table("MCP `tools/call`", rows, lambda _: bare)
    for name, why in absent.items():
        print(f"\n{name}: {why}")
    for row in rows:
        if row.failures:
            print(f"\n{row.name}: {row.failures:,} calls failed")


def _our_rows(node: ServerProcess) -> list[Row]:
    port = node.port
    return [
        Row("Fabric, stateless server", *node, stateless(port, "/mcp", "new_add", TOKEN)),
        Row("Fabric, handshake server", *node, handshake(port, "/mcp", "events_add", TOKEN)),
        Row("Fabric, stdio server", *node, handshake(port, "/mcp", "pipe_add", TOKEN)),
    ]


def _foreign(name: str, served: ServerProcess, plan: RequestPlan) -> Row:
    return Row(name, *served, plan, is_foreign=True)


# --- FastMCP and the SDK -----------------------------------------------------------------------------------------


@contextmanager
def _without_authorities() -> Iterator[dict[str, str]]:
    """An empty list of certificate authorities: a proxy that makes a TLS context for each call reads it each time."""
    with tempfile.TemporaryDirectory() as empty:
        yield {"SSL_CERT_FILE": "", "SSL_CERT_DIR": empty}


def _fastmcp(name: str, *, is_tuned: bool = False, is_stdio: bool = False) -> Start:
    @contextmanager
    def start(upstream: Upstream, core: int | None) -> Iterator[Row]:
        address = json.dumps(processes.stdio_server(upstream.core)) if is_stdio else upstream.handshake_uri
        argv = (address, "tuned") if is_tuned else (address,)
        python = python_of("fastmcp")
        with ExitStack() as stack:
            env = stack.enter_context(_without_authorities()) if is_tuned else {}
            served = stack.enter_context(
                processes.module("bench.peer_fastmcp", *argv, core=core, env=env, python=python)
            )
            yield _foreign(name, served, handshake(served.port, "/mcp", "add"))

    return start


def _sdk(name: str, *, is_tuned: bool = False) -> Start:
    @contextmanager
    def start(upstream: Upstream, core: int | None) -> Iterator[Row]:
        argv = (upstream.handshake_uri, "tuned") if is_tuned else (upstream.handshake_uri,)
        with ExitStack() as stack:
            env = stack.enter_context(_without_authorities()) if is_tuned else {}
            served = stack.enter_context(processes.module("bench.peer_sdk", *argv, core=core, env=env))
            yield _foreign(name, served, handshake(served.port, "/mcp", "add"))

    return start


# --- LiteLLM and ContextForge ------------------------------------------------------------------------------------


def _litellm(name: str, *, is_tuned: bool = False) -> Start:
    @contextmanager
    def start(upstream: Upstream, core: int | None) -> Iterator[Row]:
        port = processes.free_port()
        config = {
            "mcp_servers": {"bench": {"url": upstream.handshake_uri, "transport": "http"}},
            "general_settings": {"master_key": TOKEN},
        }
        program = str(Path(python_of("litellm")).with_name("litellm"))
        with tempfile.TemporaryDirectory() as folder, _without_authorities() as tuned:
            path = Path(folder, "config.yaml")
            path.write_text(json.dumps(config))
            env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", **({"LITELLM_LOG": "ERROR", **tuned} if is_tuned else {})}
            argv = (program, "--config", str(path), "--host", "127.0.0.1", "--port", str(port))
            with processes.process(*argv, core=core, env=env) as pid:
                processes.wait_for(port, "/health/liveliness", 120)
                yield _foreign(name, ServerProcess(port, pid), handshake(port, "/mcp/", "bench-add", TOKEN))

    return start


def _contextforge(name: str, *, is_tuned: bool = False) -> Start:
    @contextmanager
    def start(upstream: Upstream, core: int | None) -> Iterator[Row]:
        port = processes.free_port()
        python = python_of("contextforge")
        with tempfile.TemporaryDirectory() as folder:
            secret = secrets.token_urlsafe(48)
            env = {
                "DATABASE_URL": f"sqlite:///{folder}/gateway.db",
                "JWT_SECRET_KEY": secret,
                "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(48),
                "BASIC_AUTH_PASSWORD": secrets.token_urlsafe(24),
                "PLATFORM_ADMIN_PASSWORD": f"A1-{secrets.token_urlsafe(24)}",
                "SSRF_ALLOW_LOCALHOST": "true",
                "MCPGATEWAY_UI_ENABLED": "false",
                "RATE_LIMITING_ENABLED": "false",  # 100 requests a minute as it comes
                **(_CONTEXTFORGE_TUNED if is_tuned else {}),
            }
            token = _make_token(python, secret, env)
            argv = (str(Path(python).with_name("mcpgateway")), "--host", "127.0.0.1", "--port", str(port))
            with processes.process(*argv, core=core, env=env, cwd=folder) as pid:
                processes.wait_for(port, "/health", 120)
                _register(port, token, upstream.handshake_uri)
                yield _foreign(name, ServerProcess(port, pid), handshake(port, "/mcp/", "bench-add", token))

    return start


def _make_token(python: str, secret: str, env: dict[str, str]) -> str:
    argv = [python, "-m", "mcpgateway.utils.create_jwt_token", "--username", _CONTEXTFORGE_USER, "--admin"]
    argv += ["--exp", "600", "--secret", secret]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, **env})
    if done.returncode:
        raise NotInstalled(f"no token: {done.stderr[-300:]}")
    return done.stdout.split()[-1]


def _register(port: int, token: str, uri: str) -> None:
    body = json.dumps({"name": "bench", "url": uri, "transport": "STREAMABLEHTTP", "visibility": "public"})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/gateways", body.encode(), headers)
    try:
        urllib.request.urlopen(request, timeout=60).read()
    except OSError as exc:
        raise NotInstalled(f"the server cannot be registered: {exc}") from exc


# --- nginx -------------------------------------------------------------------------------------------------------


def _nginx(name: str, *, is_tuned: bool = False) -> Start:
    @contextmanager
    def start(upstream: Upstream, core: int | None) -> Iterator[Row]:
        program = _find_nginx()
        port = processes.free_port()
        with tempfile.TemporaryDirectory() as folder:
            config = _NGINX.format(
                user=getpass.getuser(),
                folder=folder,
                port=port,
                upstream=upstream.port,
                access_log="off" if is_tuned else f"{folder}/access.log",
                keepalive="keepalive 64; keepalive_requests 100000000;" if is_tuned else "",
                client_options="keepalive_requests 100000000;" if is_tuned else "",
                proxy_options="proxy_http_version 1.1; proxy_set_header Connection '';" if is_tuned else "",
            )
            path = Path(folder, "nginx.conf")
            path.write_text(config)
            with processes.process(program, "-p", folder, "-c", str(path), core=core) as pid:
                processes.wait_for(port)
                worker = processes.child_of(pid)
                yield _foreign(name, ServerProcess(port, worker), stateless(port, "/mcp", "add"))

    return start


def _find_nginx() -> str:
    """The nginx of this machine, else Debian's package, unpacked without being installed."""
    if program := shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return program
    home = load_native.PROGRAMS / "nginx"
    program = str(home / "usr" / "sbin" / "nginx")
    if not Path(program).exists():
        if not shutil.which("apt-get") or not shutil.which("dpkg"):
            raise NotInstalled("install nginx; there is no apt-get that could download it")
        home.mkdir(parents=True, exist_ok=True)
        _run_command(home, "apt-get", "download", "nginx")
        for package in home.glob("nginx_*.deb"):
            _run_command(home, "dpkg", "-x", package.name, ".")
    if not Path(program).exists():
        raise NotInstalled("install nginx; its package has no program")
    return program


def _run_command(folder: Path, *argv: str) -> None:
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotInstalled(f"install nginx; {argv[0]}: {exc}") from exc
    if done.returncode:
        raise NotInstalled(f"install nginx; {argv[0]}: {done.stderr.strip()[-300:]}")


_PEERS: dict[str, Callable[[str], Start]] = {
    "nginx, tuned": lambda name: _nginx(name, is_tuned=True),
    "nginx, as it comes": _nginx,
    "SDK forwarder, tuned": lambda name: _sdk(name, is_tuned=True),
    "SDK forwarder, as it comes": _sdk,
    "FastMCP's proxy, reused client": lambda name: _fastmcp(name, is_tuned=True),
    "FastMCP's proxy, as it comes": _fastmcp,
    "FastMCP's proxy, stdio server, reused client": lambda name: _fastmcp(name, is_tuned=True, is_stdio=True),
    "FastMCP's proxy, stdio server, as it comes": lambda name: _fastmcp(name, is_stdio=True),
    "LiteLLM, tuned": lambda name: _litellm(name, is_tuned=True),
    "LiteLLM, as it comes": _litellm,
    "ContextForge, tuned": lambda name: _contextforge(name, is_tuned=True),
    "ContextForge, as it comes": _contextforge,
}
