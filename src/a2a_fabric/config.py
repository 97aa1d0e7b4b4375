"""`fabric.yaml` as frozen structs: each setting declared once, with its default and its help.

Only this module reads the environment; files refer to secrets as `env:NAME`.
The reference page and the JSON Schema are generated from these structs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric import plugins
from a2a_fabric.core.agent import Audience, TrustTier
from a2a_fabric.core.errors import ConfigError, suggest_nearest
from a2a_fabric.core.guards import GuardSettings
from a2a_fabric.core.limits import DEFAULT_SHARE
from a2a_fabric.core.retry import BreakerPolicy
from a2a_fabric.core.routing import RoutingPolicy
from a2a_fabric.core.rules import PolicyRule
from a2a_fabric.core.view import View
from a2a_fabric.federation.settings import FederationSettings
from a2a_fabric.identity.settings import (
    CertificateSettings,
    IdentitySettings,
    IssuerSettings,
    ReceiptSettings,
    SignInSettings,
    TrustedNodeSettings,
)
from a2a_fabric.jobs.settings import JobSettings
from a2a_fabric.mesh.settings import MeshSettings
from a2a_fabric.messages.settings import MessageSettings
from a2a_fabric.registry.health import HealthPolicy
from a2a_fabric.registry.registration_policy import RegistrationSettings
from a2a_fabric.stores.address import kind_from_address
from a2a_fabric.telemetry.settings import HistorySettings, TracingSettings
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.yamlfile import YAMLFile, YamlPath

ClientCertificates = Literal["off", "optional", "required"]
DEFAULT_LISTEN = "127.0.0.1:8000"
ALL_DOORS = tuple(plugins.list_builtin_kinds("doors"))


class AuthKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pre-shared key and what it may do."""

    id: Annotated[str, Meta(min_length=1, max_length=128, description="Name of the caller in logs and envelopes.")]
    key: Annotated[str, Meta(min_length=8, description="The secret, as `env:NAME`; or `sha256:` and its hash.")]
    scopes: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="What the key may do: `*`, `agent:ID`, `tool:ID`, `capability:NAME`, `message:ID`, "
            "`inbox:ID`, `topic:NAME`, `publish:NAME`, `subscribe:NAME`, `register:ID`, `register`, "
            "`metrics`, `console:view`, `console:operate`; a name may end with `*`. Its holder sees only what it may "
            "call. Unset: everything but the console. Empty: nothing."
        ),
    ] = None
    trust: Annotated[TrustTier, Meta(description="Which trust tiers its holder reaches. `local` reaches all.")] = (
        "local"
    )
    view: Annotated[
        str | None,
        Meta(description="A view (`views`) beyond which its holder sees and calls nothing, at any door. Unset: none."),
    ] = None
    audiences: Annotated[
        tuple[Audience, ...] | None,
        Meta(
            description="Its holder sees and calls only agents whose `audience` (the `context` of a card) is one of "
            "these, and agents without one. Unset: as its `trust` allows."
        ),
    ] = None


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which callers the node lets in."""

    psk: Annotated[
        str | None,
        Meta(
            description="The node's own key (`env:NAME`). Unset: `FABRIC_PSK`, else the node makes a key and keeps it."
        ),
    ] = None
    keys: Annotated[tuple[AuthKey, ...], Meta(description="Further keys, each with its own name and scopes.")] = ()
    issuers: Annotated[
        tuple[IssuerSettings, ...],
        Meta(description="Servers whose tokens the node accepts: JSON Web Tokens, and OAuth 2.0 access tokens."),
    ] = ()
    nodes: Annotated[
        tuple[TrustedNodeSettings, ...],
        Meta(description="Other nodes whose signed identities count here, and whose requests must carry one."),
    ] = ()
    certificates: Annotated[
        tuple[CertificateSettings, ...],
        Meta(
            description="Callers with a client certificate, by its alternative names; the first entry that matches "
            "counts. Needs `tls.client_certificates`."
        ),
    ] = ()
    anonymous: Annotated[
        bool,
        Meta(
            description="Let callers in without credentials. On loopback their trust tier is `local`. Elsewhere they "
            "reach only agents of trust tier `public`, and the node must have a key."
        ),
    ] = False

    def list_names(self) -> list[str]:
        """The names of callers that the configuration gives; each once."""
        certificates = (each.id for each in self.certificates if each.id is not None)
        return list(dict.fromkeys((*(key.id for key in self.keys), *certificates, *(each.id for each in self.issuers))))


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on everything that comes in or goes out."""

    body_bytes: Annotated[int, Meta(ge=1024, description="Largest request body.")] = 4 * 1024 * 1024
    reply_bytes: Annotated[int, Meta(ge=1024, description="Largest reply taken from an agent.")] = 16 * 1024 * 1024
    timeout_ms: Annotated[int, Meta(ge=1, description="Timeout of a call that names none.")] = 60_000
    max_timeout_ms: Annotated[int, Meta(ge=1, description="Longest timeout that a call may name.")] = 300_000
    share_per_caller: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="How much one caller may use of each limit that callers share (calls, calls to one agent, "
            "streams, subscriptions, MCP sessions, threads, running jobs) while no other caller uses it; the "
            "more others use, the less. Beyond its share a caller gets RATE_LIMITED (429) and others go on. 1:"
            " everything.",
        ),
    ] = DEFAULT_SHARE
    concurrent_calls: Annotated[int, Meta(ge=1, description="Calls that the node handles at a time.")] = 2000
    concurrent_calls_per_agent: Annotated[int, Meta(ge=1, description="Calls that one agent gets at a time.")] = 500
    calls_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Calls per minute of each caller. A job counts when it is accepted. Unset: no limit."),
    ] = None
    failed_attempts_per_minute: Annotated[
        int,
        Meta(
            ge=1,
            description="Requests with wrong credentials per minute and address that are refused at once. Further "
            "refusals are delayed by up to 5 seconds. Valid credentials are never delayed.",
        ),
    ] = 120
    streams: Annotated[
        int,
        Meta(
            ge=1,
            description="Event streams, WebSockets, and requests that wait for a job, a message or a change, at a "
            "time, over all doors.",
        ),
    ] = 5000
    subscriptions: Annotated[
        int,
        Meta(ge=1, description="Resources that MCP clients subscribe to, and jobs with push notifications, at a time."),
    ] = 20_000
    agent_threads: Annotated[
        int, Meta(ge=1, description="Threads in which Python agents of this process run functions that are not async.")
    ] = 32
    connections: Annotated[int, Meta(ge=1, description="Client connections at a time.")] = 10_000
    request_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="A connection is closed if it does not send the whole head of a request within this time, or "
            "sends nothing more of a body for as long.",
        ),
    ] = 10.0
    unread_seconds: Annotated[
        float,
        Meta(gt=0, description="A connection is closed if its client reads nothing of its replies for this long."),
    ] = 60.0
    not_ready_seconds: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="After SIGTERM, how long the node says that it is not ready, and serves on, before it closes "
            "its port. Unset: 5 seconds if `/readyz` was asked within the last minute, else 0."
        ),
    ] = None
    drain_seconds: Annotated[
        float, Meta(ge=0, description="How long running calls may go on after the node was told to stop.")
    ] = 30.0


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line per call."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is written.")
    ] = "info"
    format: Annotated[
        Literal["auto", "json", "text"], Meta(description="auto: text on a terminal, JSON lines elsewhere.")
    ] = "auto"
    file: Annotated[
        str | None,
        Meta(
            description="Append to this file instead of standard error. If it is moved or removed, a new one is begun, "
            "at once after SIGUSR1."
        ),
    ] = None
    max_bytes: Annotated[
        Annotated[int, Meta(ge=4096)] | None,
        Meta(description="Begin a new file when this one would become larger. Unset: it grows."),
    ] = None
    keep_files: Annotated[
        int, Meta(ge=0, le=1000, description="How many older files (`FILE.1`, `FILE.2`, …) stay then.")
    ] = 5
    payloads: Annotated[bool, Meta(description="Also write the contents of calls and results. Off for privacy.")] = (
        False
    )


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The web console at /console."""

    enabled: Annotated[bool, Meta(description="Serve the console. The admin API stays, for the command line.")] = True
    programs: Annotated[
        bool | None,
        Meta(
            description="Let operators add agents that are programs, which then run on this machine. Unset: only while "
            "the node listens on loopback and has no `public_url`."
        ),
    ] = None
    sign_in: Annotated[
        SignInSettings | None,
        Meta(description="Let people sign in at an issuer instead of pasting a key. Unset: only keys and tokens."),
    ] = None


class StoreTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where jobs, registrations and messages are kept."""

    kind: Annotated[str, Meta(min_length=1, description="memory, sqlite, postgresql, nats, or a plug-in's.")]
    path: Annotated[str | None, Meta(description="The file, for a store in a file; relative to this one.")] = None
    url: Annotated[str | None, Meta(description="The address, for a store on a server; write `env:NAME`.")] = None

    @property
    def address(self) -> str:
        return self.url or f"{self.kind}:{self.path or ''}"


class TLSSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serve HTTPS, and nothing else, at `listen`."""

    cert: Annotated[str, Meta(min_length=1, description="File of the certificate and its chain, in PEM.")]
    key: Annotated[str, Meta(min_length=1, description="File of its private key, in PEM.")]
    password: Annotated[str | None, Meta(description="Password of the key, if it has one; write `env:NAME`.")] = None
    client_certificates: Annotated[
        ClientCertificates,
        Meta(
            description="Whether clients show a certificate: `off`, `optional` or `required`. `auth.certificates` says "
            "to which callers certificates belong."
        ),
    ] = "off"
    client_ca: Annotated[
        str | None,
        Meta(description="File of the authorities that sign client certificates, in PEM. The node follows changes."),
    ] = None


DEFAULT_NODE_ID = "local"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node."""

    node_id: Annotated[str, Meta(min_length=1, max_length=128, description="This node's name among others.")] = (
        DEFAULT_NODE_ID
    )
    listen: Annotated[str, Meta(description="HOST:PORT; port 0 takes any free port.")] = DEFAULT_LISTEN
    public_url: Annotated[
        Annotated[str, Meta(pattern="^https?://", max_length=2048)] | None,
        Meta(
            description="The address under which others reach this node. Doors use it in the addresses that they "
            "publish, and agents send push notifications to it. Unset: doors use the address that the "
            "client used, and only agents that can reach `listen` push; others are polled."
        ),
    ] = None
    tls: Annotated[
        TLSSettings | Literal["required"] | None,
        Meta(
            description="Serve HTTPS instead of HTTP. Paths are relative to this file. `required`: the node refuses to "
            "start if it would serve plain HTTP to other machines."
        ),
    ] = None
    agents: Annotated[
        tuple[str, ...],
        Meta(
            description="Where agents are declared, relative to this file: files of manifests, folders of agents, a "
            "`registry.json` or an `agent.json`, or the URL of one. If two of them name the same agent, the first wins."
        ),
    ] = ("agents.yaml",)
    federation: FederationSettings = FederationSettings()
    auth: AuthSettings = AuthSettings()
    identity: IdentitySettings = IdentitySettings()
    receipts: ReceiptSettings = ReceiptSettings()
    mesh: Annotated[
        MeshSettings | None, Meta(description="Joins this node with others over NATS. Unset: it stands alone.")
    ] = None
    views: Annotated[
        tuple[View, ...],
        Meta(
            description="Named sets of agents and tools. Each has its own address (`/views/NAME/mcp`), a key can be "
            "bound to one, and the header `X-Fabric-View` or the query `?view=` narrows one request."
        ),
    ] = ()
    policy: Annotated[
        tuple[PolicyRule, ...],
        Meta(
            description="Rules that deny calls, by caller, door, origin, time, agent and capability. The first rule "
            "that matches a call decides; without a match, scopes, trust tiers and views decide alone."
        ),
    ] = ()
    guards: Annotated[
        tuple[GuardSettings, ...],
        Meta(description="Checks of arguments and results, which may refuse or redact them. They run in this order."),
    ] = ()
    limits: LimitSettings = LimitSettings()
    routing: RoutingPolicy = RoutingPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    health: HealthPolicy = HealthPolicy()
    pin_tools: Annotated[
        bool,
        Meta(
            description="Hold back a tool that changed what it says (description, schema, title, hints, `_meta`) since "
            "it was approved, until the operator approves it (`a2a-fabric tools approve`). Agents can say otherwise in "
            "their `pin_tools`."
        ),
    ] = False
    injection_marks: Annotated[
        Literal["off", "flag", "hold"],
        Meta(
            description="Look for prompt injection in what agents say of their tools: instructions to a model, hidden "
            "characters. `flag`: tell the operator. `hold`: such tools are neither listed nor called, until the "
            "operator describes them in `tools.describe`."
        ),
    ] = "off"
    registration: RegistrationSettings = RegistrationSettings()
    tools: ToolSettings = ToolSettings()
    log: LogSettings = LogSettings()
    history: HistorySettings = HistorySettings()
    tracing: TracingSettings = TracingSettings()
    jobs: JobSettings = JobSettings()
    messages: MessageSettings = MessageSettings()
    store: Annotated[
        str | StoreTable | None,
        Meta(
            description="Where jobs, registered agents and messages are kept: `memory:`, `sqlite:PATH`, "
            "`postgresql://…`, `nats://…`, or a table with its `kind`. Unset: `fabric.db` beside this file."
        ),
    ] = None
    metrics: Annotated[bool, Meta(description="Serve Prometheus metrics at /metrics.")] = True
    console: ConsoleSettings = ConsoleSettings()
    doors: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="Which doors are open. `kind` chooses a door; the other keys are its own settings."),
    ] = tuple({"kind": kind} for kind in ALL_DOORS)


def read_environment() -> dict[str, str]:
    return dict(os.environ)


def prepare_process() -> None:
    """Call this in the process of a node before gRPC is imported.

    gRPC prepares for child processes that go on using its connections, and logs a warning for each program that is
    started. Child processes never use them: they execute other programs at once.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def load_config(path: Path, environ: Mapping[str, str]) -> Config:
    """Read and check `fabric.yaml`; raises ConfigError."""
    file = YAMLFile.read(path)
    value = {} if file.value is None else file.value
    for name, location in find_unset(value, environ):
        raise file.error(f"environment variable {name} is not set", location)
    config = file.decode(Config, resolve_env(value, environ))
    for number, table in enumerate(config.doors):
        _check_door(file, dict(table), ("doors", number))
    for number, rule in enumerate(config.policy):
        for entry, name in enumerate(rule.doors or ()):
            if not is_door_pattern(name):
                nearest = suggest_nearest(name, plugins.list_kinds("doors"))
                raise file.error(f"there is no door '{name[:64]}'{nearest}", ("policy", number, "doors", entry))
    _check_store(file, config)
    return config


def is_door_pattern(name: str) -> bool:
    """Whether the name can be that of a door: a rule that names no door would never hold, and nothing would tell."""
    return "*" in name or "?" in name or plugins.is_available("doors", name)


def _check_door(file: YAMLFile, table: dict[str, Any], location: YamlPath) -> None:
    """Check a door's settings, whose keys only its plug-in knows."""
    kind = table.pop("kind", None)
    if not isinstance(kind, str):
        raise file.error("each entry needs a `kind`", location)
    try:
        plugin = plugins.load_door(kind)
    except ConfigError as exc:
        raise file.error(exc.message, (*location, "kind")) from exc
    file.decode(plugin.settings, table, location)


def _check_store(file: YAMLFile, config: Config) -> None:
    try:
        if isinstance(config.store, StoreTable):
            plugins.load_store(config.store.kind)
        elif config.store is not None:
            plugins.load_store(kind_from_address(config.store))
    except ConfigError as exc:
        raise file.error(exc.message.removeprefix("store: "), ("store",)) from exc


def find_unset(value: Any, environ: Mapping[str, str], location: YamlPath = ()) -> Iterator[tuple[str, YamlPath]]:
    """The environment variables that are referred to and not set, each with its location."""
    if isinstance(value, str):
        if value.startswith("env:") and value[4:] not in environ:
            yield value[4:], location
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from find_unset(inner, environ, (*location, str(key)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from find_unset(inner, environ, (*location, number))


def resolve_env(value: Any, environ: Mapping[str, str]) -> Any:
    """The value with each `env:NAME` replaced, at any depth. Raises ConfigError for a variable that is not set."""
    if isinstance(value, str):
        if not value.startswith("env:"):
            return value
        name = value[4:]
        if name not in environ:
            raise ConfigError(f"environment variable {name} is not set")
        return environ[name]
    if isinstance(value, dict):
        return {key: resolve_env(inner, environ) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [resolve_env(inner, environ) for inner in value]
    return value


def parse_listen(listen: str) -> tuple[str, int]:
    """('127.0.0.1', 8000) from '127.0.0.1:8000', ':8000', '8000' or '[::1]:8000'. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    is_bare_v6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    host = host.strip("[]") or "127.0.0.1"
    if is_bare_v6 or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"listen: '{listen}' is not HOST:PORT")
    return host, int(port)
