"""Builds the runtime of an agent: chooses its kind, limits what it may reach, and identifies agents of unknown kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from a2a_fabric import plugins
from a2a_fabric.config import resolve_env
from a2a_fabric.core.agent import AGENT_KEY, MESH_RUNTIME, Manifest
from a2a_fabric.core.errors import AgentOffline, BadInput, ConfigError, FabricError, suggest_nearest
from a2a_fabric.core.forwarding import CallSigner
from a2a_fabric.core.ports import Runtime, load_module
from a2a_fabric.federation.locations import GIT_RUNTIME
from a2a_fabric.identity.settings import AgentIdentitySettings, IdentitySettings
from a2a_fabric.logins.oauth import read_login_target
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.client_tls import ClientTLS, ClientTLSFiles
from a2a_fabric.outbound.credentials import SignedClient
from a2a_fabric.outbound.guard import RegistrationGuards
from a2a_fabric.probing.autodetect import AutodetectRuntime, needs_detection
from a2a_fabric.probing.findings import Finding
from a2a_fabric.registry.registration_policy import RegistrationTerms, read_terms
from a2a_fabric.registry.runtime_pool import RuntimeLoader
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.dependencies import DependentRuntime, needs_check
from a2a_fabric.runtimes.per_principal import LoginTokens, PerPrincipalRuntime, PerPrincipalSettings

_GIT_MODULE = "a2a_fabric.federation.git_runtime"
_GUESS_SECONDS = 3.0  # for each probe of an agent whose manifest names no runtime

DEFAULT_KIND = "http"  # for an address at which no other protocol is found

_LOGIN_KINDS = ("mcp", "http", "rest", "rpc")  # they send every request through the context's client, or its token

IDENTITY_KEY = "identity"
TLS_KEY = "tls"
_GRPC_KIND = "grpc"
_UNSIGNED_KINDS = ("python", "tool")  # they run in this process
# The program gives its environment to the tools of its model, so only the agent's own endpoint can ask for it.
_SIGNED_IF_DECLARED = "claude"

OnIdentified = Callable[[str, Runtime, Runtime, str | None], bool]


class SignerSource(Protocol):
    """The node's own signer; see `identity.node_signer`."""

    def build_for(self, agent_id: str, uri: str | None, settings: AgentIdentitySettings) -> CallSigner: ...


class NodeIdentity:
    """Which requests to agents are signed. `load_signer` is called when the first agent asks for it."""

    def __init__(self, settings: IdentitySettings, load_signer: Callable[[], SignerSource]) -> None:
        self._settings = settings
        self._load_signer = load_signer

    def is_signed(self, manifest: Manifest) -> bool:
        return self._read_settings(manifest).sign

    def prepare(self, manifest: Manifest, context: RuntimeContext) -> tuple[Manifest, RuntimeContext]:
        """Manifest and context for a runtime that signs, if its requests are to be signed. Raises FabricError."""
        settings = self._read_settings(manifest)
        if IDENTITY_KEY in manifest.endpoint:
            endpoint = {name: value for name, value in manifest.endpoint.items() if name != IDENTITY_KEY}
            manifest = msgspec.structs.replace(manifest, endpoint=endpoint)
        if not settings.sign:
            return manifest, context
        uri = manifest.endpoint.get("uri")
        signer = self._load_signer().build_for(manifest.agent_id, uri, settings)
        http = context.http
        if isinstance(uri, str) and uri.startswith(("http://", "https://")):
            http = SignedClient(http, signer, uri)
        return manifest, msgspec.structs.replace(context, http=http, signer=signer)

    def _read_settings(self, manifest: Manifest) -> AgentIdentitySettings:
        """Raises BadInput."""
        declared = manifest.endpoint.get(IDENTITY_KEY, self._settings.sign)
        if isinstance(declared, bool):
            kind = plugins.canonical_kind(manifest.runtime or "")
            is_remote = kind not in _UNSIGNED_KINDS and not manifest.is_tool
            is_wanted = kind != _SIGNED_IF_DECLARED or IDENTITY_KEY in manifest.endpoint
            return AgentIdentitySettings(sign=declared and is_remote and is_wanted)
        try:
            return msgspec.convert(declared, AgentIdentitySettings)
        except msgspec.ValidationError as exc:
            raise BadInput(f"Agent '{manifest.agent_id}' has a bad `identity`: {exc}") from exc


class RuntimeFactory:
    """Builds runtimes with `context`; agents that registered at run time get one with the guards of `reach`.

    Such an agent may only be identified as one of `kinds`. `on_identified` is called when the runtime of an agent
    without a declared one is known.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        context: RuntimeContext,
        reach: RegistrationGuards,
        on_identified: OnIdentified,
        logins: LoginTokens,
        identity: NodeIdentity,
        foreign_context: RuntimeContext,
    ) -> None:
        """`foreign_context` is for agents whose addresses come from cards and registries at URLs."""
        self.loading = RuntimeLoader(
            infer_runtime_kind, _import_kind, frozenset({GIT_RUNTIME, *plugins.list_builtin_kinds("runtimes")})
        )
        self._kinds = kinds
        self._context = context
        self._foreign_context = foreign_context
        self._reach = reach
        self._on_identified = on_identified
        self._logins = logins
        self._identity = identity
        self._clients = {
            guard: OutboundClient(guard, when_full="open") for guard in (reach.local_guard, reach.public_guard)
        }
        # The same context for agents whose addresses are checked at every connection.
        self._guarded_contexts = {
            guard: msgspec.structs.replace(context, http=http, guard=guard) for guard, http in self._clients.items()
        }

        self._tls_clients: dict[ClientTLSFiles, OutboundClient] = {}
        self._tls_files: dict[str, ClientTLSFiles] = {}  # by agent
        self._tunnel_clients: dict[ClientTLSFiles, OutboundClient] = {}

    def set_reply_bytes(self, reply_bytes: int) -> bool:
        """For runtimes that are built from now on; whether it is another limit than before."""
        if reply_bytes == self._context.reply_bytes:
            return False
        self._context = msgspec.structs.replace(self._context, reply_bytes=reply_bytes)
        self._foreign_context = msgspec.structs.replace(self._foreign_context, reply_bytes=reply_bytes)
        self._guarded_contexts = {
            guard: msgspec.structs.replace(context, reply_bytes=reply_bytes)
            for guard, context in self._guarded_contexts.items()
        }
        return True

    async def aclose(self) -> None:
        for http in (*self._clients.values(), *self._tls_clients.values(), *self._tunnel_clients.values()):
            await http.aclose()

    def find_tunnel_client(self, agent_id: str) -> OutboundClient | None:
        """The client for requests that are passed through to an agent that wants a certificate of the node. It is
        not the one of its calls, from which long streams would take connections.
        """
        files = self._tls_files.get(agent_id)
        if files is not None and files not in self._tunnel_clients:
            self._tunnel_clients[files] = OutboundClient(self._context.guard, tls=ClientTLS(files), when_full="open")
        return None if files is None else self._tunnel_clients[files]

    def build(self, manifest: Manifest) -> Runtime:
        """Raises FabricError."""
        self._tls_files.pop(manifest.agent_id, None)
        terms = read_terms(manifest)
        context = self._choose_context(manifest, terms)
        if manifest.runtime == GIT_RUNTIME and terms is None:
            runtime: Runtime = load_module(_GIT_MODULE).GitAgentRuntime(manifest, self._build_clone)
            return runtime
        resolved = msgspec.structs.replace(manifest, endpoint=resolve_env(manifest.endpoint, context.environ))
        is_foreign = terms is not None or context is self._foreign_context
        if IDENTITY_KEY in resolved.endpoint and is_foreign:
            raise BadInput("Only the operator's files can say what is signed for an agent (`identity`)")
        if isinstance(resolved.endpoint.get(TLS_KEY), dict):
            if is_foreign:
                raise BadInput("Only the operator's files can name certificates for an agent (`tls`)")
            resolved, context = self._prepare_tls(resolved, context)
        resolved, context = self._identity.prepare(resolved, context)
        if "auth" in resolved.endpoint:
            if terms is not None:
                raise BadInput("Only an agent in the operator's files can ask its callers to log in (`auth`)")
            return self._build_per_principal(resolved, context)
        runtime = _build_runtime(resolved, context)
        if not needs_detection(manifest):
            return runtime
        kinds = self._kinds if terms is not None else None
        return AutodetectRuntime(
            resolved,
            runtime,
            partial(self._identify, resolved, context, kinds),
            partial(_build_runtime, context=context),
            self._on_identified,
        )

    def _choose_context(self, manifest: Manifest, terms: RegistrationTerms | None) -> RuntimeContext:
        """Addresses that the operator did not write are checked at every connection."""
        if terms is not None:
            return self._guarded_contexts[self._reach.guard_for(terms.trust)]
        is_remote = manifest.origin is not None and manifest.origin.location == "remote"
        return self._foreign_context if is_remote else self._context

    async def _build_clone(self, manifest: Manifest) -> Runtime:
        """The runtime of an agent whose clone is on this machine. Raises FabricError."""
        await self.loading.load(infer_runtime_kind(manifest))
        return self.build(manifest)

    def _prepare_tls(self, manifest: Manifest, context: RuntimeContext) -> tuple[Manifest, RuntimeContext]:
        """Manifest and context for a runtime that shows the node's certificate for this agent. Raises BadInput."""
        endpoint = {name: value for name, value in manifest.endpoint.items() if name != TLS_KEY}
        try:
            declared = msgspec.convert(manifest.endpoint[TLS_KEY], ClientTLSFiles)
            if manifest.runtime == _GRPC_KIND:  # it has a channel of its own
                own = {name: value for name, value in msgspec.to_builtins(declared).items() if value is not None}
                return msgspec.structs.replace(manifest, endpoint={**endpoint, **own, TLS_KEY: True}), context
            files = declared.resolve(context.base)
            http = self._tls_clients.get(files)
            if http is None:
                http = self._tls_clients[files] = OutboundClient(context.guard, tls=ClientTLS(files), when_full="open")
            self._tls_files[manifest.agent_id] = files
        except (msgspec.ValidationError, ConfigError) as exc:
            raise BadInput(f"Agent '{manifest.agent_id}' has a bad `tls`: {exc}", agent_id=manifest.agent_id) from exc
        manifest = msgspec.structs.replace(manifest, endpoint=endpoint)
        return manifest, msgspec.structs.replace(context, http=http, tls=files)

    def _build_per_principal(self, manifest: Manifest, context: RuntimeContext) -> Runtime:
        """Raises BadInput for a bad `auth`, or a runtime that takes no token."""
        target = read_login_target(manifest, manifest.endpoint)
        assert target is not None  # noqa: S101  # the endpoint has an `auth`
        kind = plugins.canonical_kind(infer_runtime_kind(manifest))
        if manifest.runtime is None or kind not in _LOGIN_KINDS:
            raise BadInput(
                f"Agent '{manifest.agent_id}' has `auth: oauth`, which needs a `runtime`: {', '.join(_LOGIN_KINDS)}",
                agent_id=manifest.agent_id,
            )
        endpoint = {name: value for name, value in manifest.endpoint.items() if name != "auth"}
        settings = PerPrincipalSettings(
            uri=target.uri,
            service_token=target.settings.service_token,
            max_sessions=target.settings.max_sessions,
            idle_timeout=target.settings.idle_seconds,
        )
        return PerPrincipalRuntime(
            msgspec.structs.replace(manifest, endpoint=endpoint), context, _build_runtime, self._logins, settings
        )

    async def _identify(
        self, manifest: Manifest, context: RuntimeContext, kinds: Sequence[str] | None
    ) -> Finding | None:  # fmt: skip
        """The protocol found at the address, if its runtime may be used. Raises AgentOffline, ProbeUnanswered."""
        endpoint = manifest.endpoint
        # Loaded on first use: most agents say what they speak, and a start has no time for it.
        addresses: Any = await asyncio.to_thread(load_module, "a2a_fabric.probing.addresses")
        finding: Finding | None = await addresses.detect(
            context.http, endpoint["uri"], endpoint.get("headers", {}), _GUESS_SECONDS
        )
        if finding is None or (kinds is not None and finding.runtime not in kinds):
            return None
        with suppress(FabricError):  # building the runtime raises the same
            await self.loading.load(finding.runtime)
        return finding


def _import_kind(kind: str) -> None:
    if kind == GIT_RUNTIME:  # its clone names the runtime that does the work
        load_module(_GIT_MODULE)
    elif kind != MESH_RUNTIME:
        plugins.load_runtime(kind)


def _build_runtime(manifest: Manifest, context: RuntimeContext) -> Runtime:
    """Raises FabricError."""
    runtime = plugins.load_runtime(infer_runtime_kind(manifest)).build(manifest, context)
    return DependentRuntime(manifest, runtime, context) if needs_check(manifest) else runtime


def infer_runtime_kind(manifest: Manifest) -> str:
    """The declared runtime, or the one that the endpoint implies. Raises AgentOffline if it implies none."""
    if manifest.runtime:
        return manifest.runtime
    if manifest.implied_runtime is not None:
        return manifest.implied_runtime
    uri = str(manifest.endpoint.get("uri", ""))
    if uri.startswith(("http://", "https://")) and AGENT_KEY in manifest.endpoint:  # one agent of another node
        return "fabric"
    if uri.startswith(("http://", "https://")) or "openapi" in manifest.endpoint:
        return DEFAULT_KIND
    if uri:
        raise AgentOffline(
            f"agent '{manifest.agent_id}': '{uri[:200]}' is not an address such as http://127.0.0.1:9001. "
            "For any other endpoint, name a `runtime`"
        )
    raise AgentOffline(f"agent '{manifest.agent_id}': the endpoint needs a uri or a command")


def resolve_runtime_kind(manifest: Manifest) -> str:
    """The same under its name in the table of runtimes. Raises AgentOffline, or ConfigError for an unknown runtime."""
    kind = plugins.canonical_kind(infer_runtime_kind(manifest))
    if not plugins.is_available("runtimes", kind):
        raise ConfigError(f"there is no runtime '{kind}'{suggest_nearest(kind, plugins.list_kinds('runtimes'))}")
    return kind
