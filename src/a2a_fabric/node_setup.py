"""Builds what the configuration names: the store, the log file, the TLS files, and how callers are authenticated."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from a2a_fabric import plugins
from a2a_fabric.config import AuthKey, Config, LogSettings, StoreTable, TLSSettings, parse_listen
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import ConfigError, InternalError
from a2a_fabric.core.logins import LoginStore
from a2a_fabric.core.policy import OPERATOR_ID, OPERATOR_PRINCIPAL, SCOPE_KINDS, is_known_scope, is_loopback
from a2a_fabric.core.ports import AgentSource, load_module
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.receipts import ReceiptStore
from a2a_fabric.core.spans import CallStore
from a2a_fabric.core.stores import Store
from a2a_fabric.core.used_tokens import UsedTokenStore
from a2a_fabric.core.view import EVERY_CAPABILITY, View
from a2a_fabric.doors.context import TLSFiles
from a2a_fabric.federation.settings import FederationSettings
from a2a_fabric.federation.source import FederationSource, is_federation_source, is_url
from a2a_fabric.identity.certificates import CertificateCaller, CertificateCallers
from a2a_fabric.identity.keyfile import find_state_folder
from a2a_fabric.identity.resolver import Resolver
from a2a_fabric.identity.shared_keys import SharedKey, SharedKeys, make_principal
from a2a_fabric.logins.cipher import LoginCipher, load_cipher
from a2a_fabric.logins.listings import LoginListings
from a2a_fabric.logins.logins import Logins
from a2a_fabric.logins.oauth import LoginTarget, OAuthClient
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.registry.names import ReservedNames
from a2a_fabric.registry.sources.files import AgentsFile
from a2a_fabric.semantic.matcher import SemanticMatcher, find_model
from a2a_fabric.stores.address import build_default_address, kind_from_address, resolve_address
from a2a_fabric.telemetry.history import CallHistory
from a2a_fabric.telemetry.log_file import LogFile
from a2a_fabric.telemetry.metrics import Metrics
from a2a_fabric.telemetry.observer import LogStream, LogWriter
from a2a_fabric.telemetry.recorder import SpanRecorder, build_export, build_sampler
from a2a_fabric.web.token_middleware import TokenMiddleware

if TYPE_CHECKING:
    from a2a_fabric.identity.receipt_writer import ReceiptWriter
    from a2a_fabric.identity.trusted_nodes import TrustedNodes

_MAX_PROBLEMS = 20  # that are reported of one view

_log = logging.getLogger(__name__)


def resolve_store_address(config: Config, base: Path | None) -> str:
    """As configured; else a file beside the configuration, or memory for a node without a folder."""
    if config.store is None:
        return "memory:" if base is None else build_default_address(base)
    address = config.store.address if isinstance(config.store, StoreTable) else config.store
    return resolve_address(address, base or Path.cwd())


def build_source(location: str | Path, base: Path, settings: FederationSettings) -> AgentSource:
    """The source of one entry of `agents`: a file of manifests, or a folder, a card, a registry, or a URL."""
    if is_url(str(location)):
        return FederationSource(str(location), settings)
    path = base / location
    if is_federation_source(path):
        return FederationSource(path, settings)
    # The default file may be missing. One that was there and is deleted is a mistake: its agents stay.
    return AgentsFile(path, optional=str(location) == "agents.yaml" and not path.exists())


def build_matcher(settings: FederationSettings, base: Path, stack: AsyncExitStack) -> SemanticMatcher | None:
    """Raises ConfigError if the model, or what computes it, is not installed."""
    if settings.semantic is None:
        return None
    matcher = SemanticMatcher(settings.semantic, find_model(settings.semantic, base))
    stack.push_async_callback(matcher.aclose)
    return matcher


async def open_store(address: str) -> Store:
    """Raises ConfigError for an unknown kind, StoreError for a store that cannot be used."""
    return await plugins.load_store(kind_from_address(address)).build(address)


def resolve_tls_files(base: Path, config: Config) -> TLSFiles | None:
    """Raises ConfigError."""
    files = config.tls
    if files is None or files == "required":
        return None
    if files.client_certificates != "off" and files.client_ca is None:
        raise ConfigError("tls: client_certificates needs `client_ca`, a file with the authorities that sign them")
    return TLSFiles(
        cert=base / files.cert,
        key=base / files.key,
        password=files.password,
        client_certificates=files.client_certificates,
        client_ca=None if files.client_ca is None else base / files.client_ca,
    )


def open_log_writer(settings: LogSettings, base: Path, stream: IO[str] | None, stack: AsyncExitStack) -> LogWriter:
    target: LogStream = stream or sys.stderr
    if settings.file is not None:
        try:
            target = LogFile(base / settings.file, settings.max_bytes, settings.keep_files)
        except OSError as exc:
            raise ConfigError(f"log.file: {settings.file}: {exc.strerror}") from exc
        stack.callback(target.close)
    as_text = settings.format == "text" or (settings.format == "auto" and target.isatty())
    writer = LogWriter(target, as_text=as_text, level=settings.level)
    stack.callback(writer.close)
    return writer


def build_call_history(config: Config, store: Store, metrics: Metrics) -> CallHistory | None:
    """None if it is switched off, or the store is a plug-in's that keeps no calls."""
    calls: CallStore | None = getattr(store, "calls", None)
    if not config.history.enabled or calls is None:
        return None
    history = CallHistory(calls, config.history, config.node_id)
    metrics.add_source(history.render_metrics)
    return history


def build_recorder(
    config: Config,
    environ: Mapping[str, str],
    history: CallHistory | None,
    metrics: Metrics,
    stack: AsyncExitStack,
) -> SpanRecorder | None:
    """None if neither the history nor a collector wants recordings of calls. Raises ConfigError."""
    export = build_export(config.tracing, environ, config.node_id)
    if export is not None:
        stack.push_async_callback(asyncio.to_thread, export.close)
        metrics.add_source(export.render_metrics)
    if history is None and export is None:
        return None
    sampler = build_sampler(config.tracing, environ)
    return SpanRecorder(history, export, sampler, config.node_id)


def collect_shared_keys(config: Config, psk: str | None) -> list[SharedKey]:
    """The keys of the configuration, and the node's own.

    Raises ConfigError for two callers with the same key or name, for an unknown scope (which a caller would silently
    lack), and for a node that listens beyond this machine without any key.
    """
    _check_scopes(config)
    views = _index_views(config)
    keys = [_make_shared_key(each, views) for each in config.auth.keys]
    secret = config.auth.psk or psk
    if secret:
        keys.insert(0, SharedKey(principal_id=OPERATOR_ID, secret=secret))
    owners: dict[bytes, str] = {}
    for key in keys:
        other_id = owners.setdefault(key.digest, key.principal_id)
        if other_id != key.principal_id:
            raise ConfigError(f"auth: '{other_id}' and '{key.principal_id}' have the same key")
        _check_name(key, config)
    host, _ = parse_listen(config.listen)
    if not keys and not config.auth.issuers and not is_loopback(host):
        raise ConfigError(
            f"listen: a node without any key may listen on loopback only, not on {host}. Set auth.psk or auth.keys"
        )
    return keys


def build_certificate_callers(config: Config) -> CertificateCallers:
    """Raises ConfigError."""
    views = _index_views(config)
    if config.auth.certificates and not (isinstance(config.tls, TLSSettings) and config.tls.client_ca):
        raise ConfigError("auth: certificates need `tls` with `client_certificates` and `client_ca`")
    for certificate in config.auth.certificates:
        name = certificate.id or certificate.match
        for issuer in config.auth.issuers:
            if name.startswith(f"{issuer.id}:"):
                raise ConfigError(f"auth: certificates: '{name}' could also be a caller of the issuer '{issuer.id}'")
    return CertificateCallers(
        CertificateCaller(
            match=each.match,
            principal_id=each.id,
            scopes=each.scopes,
            trust=each.trust,
            view=_find_view("certificates", each.id or each.match, each.view, views),
        )
        for each in config.auth.certificates
    )


class Authentication:
    """Who is let in, and how: keys, issuers and anonymous callers, which may change while the node runs."""

    def __init__(self, config: Config, psk: str | None, base: Path) -> None:
        """Raises ConfigError."""
        self._config = config
        self._psk = psk
        self._base = base
        self._views = _index_views(config)
        self._http: OutboundClient | None = None
        self._tokens: list[Any] = []  # those of earlier settings may still be checking a token
        self.keys = SharedKeys(collect_shared_keys(config, psk))

    def build_resolver(self, count_attempt: Callable[[str, str], None]) -> Resolver:
        """Raises ConfigError."""
        anonymous, tokens = _make_anonymous_principal(self._config), self._build_tokens(self._config)
        self.resolver = Resolver(
            self.keys, anonymous, count_attempt, tokens, self._config.views, build_certificate_callers(self._config)
        )
        return self.resolver

    def prepare(self, config: Config) -> Callable[[], None]:
        """Check `auth` and `views` of a new configuration; the function puts both into effect. Raises ConfigError."""
        if config.auth.nodes != self._config.auth.nodes:
            raise ConfigError("auth.nodes cannot change while the node runs. Restart the node")
        config = msgspec.structs.replace(self._config, auth=config.auth, views=config.views)
        views = _index_views(config)
        keys, tokens = collect_shared_keys(config, self._psk), self._build_tokens(config)
        certificates = build_certificate_callers(config)

        def take_effect() -> None:
            self._config, self._views = config, views
            self.keys.set_configured(keys)
            self.resolver.replace(_make_anonymous_principal(config), tokens, certificates, config.views)

        return take_effect

    def find_view(self, name: str) -> View | None:
        return self._views.get(name)

    def build_token_middleware(self) -> TokenMiddleware | None:
        return build_token_middleware(self._config, self.resolver)

    def reserve_names(self, names: ReservedNames) -> None:
        """No agent may register under the name of a caller."""
        auth = self._config.auth
        certificates = (each.id for each in auth.certificates if each.id is not None)
        names.set_callers(
            keys=(*self.keys.names, *(key.id for key in auth.keys), *certificates),
            issuers=(each.id for each in auth.issuers),
        )

    async def aclose(self) -> None:
        for tokens in self._tokens:
            await tokens.aclose()
        if self._http is not None:
            await self._http.aclose()

    def _build_tokens(self, config: Config) -> Any:
        """Raises ConfigError."""
        if not config.auth.issuers:
            return None
        if self._http is None:
            self._http = OutboundClient()  # unguarded: the operator configured these addresses
        # Loaded on demand: most nodes need no cryptography.
        trusted_issuers = load_module("a2a_fabric.identity.trusted_issuers")
        tokens = trusted_issuers.build_trusted_tokens(config.auth.issuers, self._base, config.public_url, self._http)
        self._tokens = [*(each for each in self._tokens if each.is_busy), tokens]
        return tokens


def build_trusted_nodes(
    config: Config, resolver: Resolver, base: Path, stack: AsyncExitStack, store: Store
) -> TrustedNodes | None:
    """The resolver for a node that trusts the signed identities of other nodes. Raises ConfigError."""
    if not config.auth.nodes:
        return None
    http = OutboundClient()  # unguarded: the operator configured these addresses
    stack.push_async_callback(http.aclose)
    trusted_nodes = load_module("a2a_fabric.identity.trusted_nodes")
    own_names = tuple(name for name in (config.public_url, config.node_id) if name is not None)
    # A store of another package may not remember used tokens; then each node remembers those that it saw.
    used_tokens: UsedTokenStore | None = getattr(store, "used_tokens", None)
    built: TrustedNodes = trusted_nodes.build_trusted_nodes(
        config.auth.nodes, resolver, own_names, base, http, used_tokens
    )
    return built


class LazyNodeKeys:
    """The node's signing key, loaded when it is first needed: most nodes need no cryptography."""

    def __init__(self, config: Config, base: Path, environ: Mapping[str, str]) -> None:
        self._settings = config.identity
        self._receipts = config.receipts
        self._name = config.identity.name or config.public_url or config.node_id
        self._base = base
        self.path = resolve_identity_path(config, base, environ)
        self._signer: Any = None

    def load_signer(self) -> Any:
        """The `NodeSigner` of this node."""
        if self._signer is None:
            keys = load_module("a2a_fabric.identity.node_keys").NodeKeys(self.path)
            signer_type = load_module("a2a_fabric.identity.node_signer").NodeSigner
            self._signer = signer_type(keys, self._name, self._base, self._settings.seconds)
        return self._signer

    def sign_trace(self, trace: Trace, outcome: str, result: Any) -> str:
        """Raises InternalError if the node has no key and cannot make one."""
        try:
            key = self.load_signer().keys.get()
        except ConfigError as exc:
            _log.error("A reply could not be signed: %s", exc.message)
            raise InternalError from exc
        signed_traces = load_module("a2a_fabric.identity.signed_traces")
        signature: str = signed_traces.sign_trace(key, self._name, trace, outcome, result, time.time())
        return signature

    def load_receipt_writer(self, store: ReceiptStore) -> ReceiptWriter | None:
        """None if the node writes no receipts. Raises ConfigError."""
        if not self._receipts.enabled:
            return None
        keys = self.load_signer().keys
        keys.get()  # a key that cannot be read or made stops the start
        writer_type = load_module("a2a_fabric.identity.receipt_writer").ReceiptWriter
        writer: ReceiptWriter = writer_type(store, keys, self._name, self._receipts)
        return writer

    def list_public(self) -> list[dict[str, Any]]:
        """The public keys; none if the node has never signed anything. Raises ConfigError."""
        if self._signer is None and not self.path.exists():
            return []
        keys: list[dict[str, Any]] = self.load_signer().keys.list_public()
        return keys


def resolve_identity_path(config: Config, base: Path, environ: Mapping[str, str]) -> Path:
    if config.identity.key_file is not None:
        return base / config.identity.key_file
    return find_state_folder(environ) / "identity.key"


def build_token_middleware(config: Config, identify: Resolver) -> TokenMiddleware | None:
    if not config.auth.issuers:
        return None
    grants: dict[str, tuple[str, ...]] = {}
    for issuer in config.auth.issuers:
        for word, scopes in issuer.grants.items():
            grants[word] = (*grants.get(word, ()), *scopes)
    return TokenMiddleware(identify.verify_token, list_token_issuers(config), grants, config.public_url)


def build_logins(
    store: LoginStore,
    environ: Mapping[str, str],
    find_target: Callable[[str], LoginTarget | None],
    base_url: Callable[[], str | None],
    listings: LoginListings,
    stack: AsyncExitStack,
    *,
    in_memory: bool,
) -> Logins:
    """The guarded client is for authorization servers that an agent names, not the operator."""
    http, guarded_http = OutboundClient(), OutboundClient(Guard())
    stack.push_async_callback(http.aclose)
    stack.push_async_callback(guarded_http.aclose)

    def load() -> LoginCipher:
        return load_cipher(environ, find_state_folder(environ), in_memory=in_memory)

    return Logins(store, OAuthClient(http, guarded_http), load, find_target, base_url, listings)


def find_configured_principal(config: Config, principal_id: str) -> Principal:
    """A caller as its credentials would make it: a key's holder, `psk`, `anonymous`, or a caller of an issuer.

    Raises ConfigError.
    """
    views = _index_views(config)
    if principal_id == OPERATOR_ID:
        return OPERATOR_PRINCIPAL
    for key in config.auth.keys:
        if key.id == principal_id:
            return make_principal(key.id, key.scopes, key.trust, _make_shared_key(key, views).views)
    for certificate in config.auth.certificates:
        if principal_id in (certificate.id, certificate.match):
            view = _find_view("certificates", principal_id, certificate.view, views)
            return make_principal(
                principal_id, certificate.scopes, certificate.trust, () if view is None else (view,), "mtls"
            )
    for issuer in config.auth.issuers:
        if principal_id.startswith(f"{issuer.id}:"):
            return Principal(mode="jwt", principal_id=principal_id, scp=issuer.scopes, trust=issuer.trust)
    anonymous = _make_anonymous_principal(config)
    if anonymous is not None and principal_id == anonymous.principal_id:
        return anonymous
    known = [OPERATOR_ID, *(key.id for key in config.auth.keys), *(f"{each.id}:SUB" for each in config.auth.issuers)]
    raise ConfigError(f"auth: there is no caller '{principal_id[:128]}'. The callers are: {', '.join(known[:20])}")


def list_token_issuers(config: Config) -> tuple[str, ...]:
    """The issuers from which callers can get a token for this node."""
    return tuple(each.issuer for each in config.auth.issuers if each.is_server)


def find_plain_listeners(config: Config) -> list[str]:
    """The addresses that other machines can reach and that are served without TLS."""
    if isinstance(config.tls, TLSSettings):
        return []
    grpc = (str(table["grpc"]) for table in config.doors if table.get("grpc"))
    return [each for each in (config.listen, *grpc) if not is_loopback(parse_listen(each)[0])]


def check_plain_listeners(config: Config) -> None:
    """Raises ConfigError if the operator has ruled out what `find_plain_listeners` finds."""
    plain = find_plain_listeners(config)
    if config.tls == "required" and plain:
        raise ConfigError(
            f"tls: required, but {plain[0]} would be served without TLS to other machines. Set `tls` to the files of a "
            "certificate (cert, key), or listen on 127.0.0.1 behind a proxy that has one"
        )


def list_exposure_warnings(config: Config) -> list[str]:
    """One warning for each setting that exposes calls to other machines: without TLS, or without credentials."""
    messages = [
        f"{address} is served without TLS, and other machines can reach it: keys, tokens and calls can be read on the "
        "way. Set `tls` (cert, key), or listen on 127.0.0.1 behind a proxy that has a certificate. With "
        "`tls: required` the node refuses to start like this"
        for address in find_plain_listeners(config)
    ]
    host, _ = parse_listen(config.listen)
    if is_loopback(host):
        return messages
    if config.auth.anonymous:
        messages.append(
            f"auth.anonymous lets callers without credentials in at {config.listen}, which other machines can reach: "
            "they may call every agent of trust tier 'public'. To keep them out, remove auth.anonymous, or listen on "
            "127.0.0.1 behind a proxy that authenticates"
        )
    for table in config.doors:
        tier = table.get("anonymous")
        if tier is not None:
            messages.append(
                f"doors: {table.get('kind')}: anonymous: {tier} lets callers without credentials in at "
                f"{config.listen}, which other machines can reach, and trusts them as '{tier}'. To keep them out, "
                "remove it, or listen on 127.0.0.1"
            )
    return messages


def list_view_warnings(views: Iterable[View], manifests: Iterable[Manifest]) -> list[str]:
    """A warning for each view that includes nothing of these agents and tools, or everything, and for each of its
    patterns that matches nothing.
    """
    offered, warnings = list(manifests), list[str]()
    for view in views:
        if not any(map(view.may_include, offered)):
            warnings.append(
                f"views: '{view.name}' matches no agent and no tool, so its callers see nothing. Compare its patterns "
                "with the output of: a2a-fabric tools list"
            )
        elif all(view.includes(manifest, EVERY_CAPABILITY) for manifest in offered):
            warnings.append(
                f"views: '{view.name}' matches every agent and every tool, so it hides nothing. Name what it is to "
                "include in agents, tools, tags or tiers"
            )
        problems = islice(view.list_unmatched(offered), _MAX_PROBLEMS)
        warnings += [f"views: '{view.name}': {problem}" for problem in problems]
    return warnings


def _index_views(config: Config) -> dict[str, View]:
    """Raises ConfigError for two views of one name."""
    views: dict[str, View] = {}
    for view in config.views:
        if view.name in views:
            raise ConfigError(f"views: there are two views named '{view.name}'. Give each a name of its own")
        views[view.name] = view
    return views


def _make_shared_key(key: AuthKey, views: Mapping[str, View]) -> SharedKey:
    """Raises ConfigError."""
    return SharedKey(
        principal_id=key.id,
        secret=key.key,
        scopes=key.scopes,
        trust=key.trust,
        view=_find_view("keys", key.id, key.view, views),
        audiences=key.audiences,
    )


def _find_view(section: str, name: str, view: str | None, views: Mapping[str, View]) -> View | None:
    """Raises ConfigError: a caller whose view were ignored would see everything."""
    if view is None:
        return None
    if view not in views:
        known = ", ".join(views) or "none"
        raise ConfigError(f"auth: {section}: {name}: there is no view '{view}'. The views of this node are: {known}")
    return views[view]


def _make_anonymous_principal(config: Config) -> Principal | None:
    if not config.auth.anonymous:
        return None
    host, _ = parse_listen(config.listen)
    return Principal(mode="none", principal_id="anonymous", trust="local" if is_loopback(host) else "public")


def _check_scopes(config: Config) -> None:
    declared = [(f"keys: {key.id}", key.scopes or ()) for key in config.auth.keys]
    declared += [(f"certificates: {each.id or each.match}", each.scopes or ()) for each in config.auth.certificates]
    for issuer in config.auth.issuers:
        declared += [
            (
                f"issuers: {issuer.id}",
                (*issuer.scopes, *(each for granted in issuer.grants.values() for each in granted)),
            )
        ]
    for where, scopes in declared:
        for scope in scopes:
            if not is_known_scope(scope):
                kinds = ", ".join(f"{kind}:NAME" for kind in SCOPE_KINDS)
                raise ConfigError(f"auth: {where}: '{scope[:64]}' is not a scope; use *, metrics, register, or {kinds}")


def _check_name(key: SharedKey, config: Config) -> None:
    """The name of a key must never equal the name of a caller of an issuer."""
    for issuer in config.auth.issuers:
        if key.principal_id.startswith(f"{issuer.id}:"):
            raise ConfigError(f"auth: '{key.principal_id}' could also be a caller of the issuer '{issuer.id}'")
