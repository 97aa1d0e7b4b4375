"""Identity, from the configuration: how callers are authenticated, what the node signs with, which nodes it trusts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from a2a_fabric.config import AuthKey, Config, TLSSettings, parse_listen
from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.call import Principal
from a2a_fabric.core.disclosure import OPERATOR_ID, OPERATOR_PRINCIPAL
from a2a_fabric.core.errors import ConfigError, InternalError
from a2a_fabric.core.keys import UsedTokenStore
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.core.ports import load_module
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.receipts import ReceiptStore
from a2a_fabric.core.scopes import SCOPE_KINDS, is_known_scope
from a2a_fabric.core.stores import Store
from a2a_fabric.core.view import View
from a2a_fabric.identity.certificates import CertificateCaller, CertificateCallers
from a2a_fabric.identity.keyfile import find_state_folder
from a2a_fabric.identity.resolver import DoorResolver, Resolver
from a2a_fabric.identity.shared_keys import SharedKey, SharedKeys, make_principal
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.registry.names import ReservedNames
from a2a_fabric.web.identity_middleware import IdentityMiddleware
from a2a_fabric.web.token_middleware import TokenMiddleware

if TYPE_CHECKING:
    from a2a_fabric.identity.receipt_writer import ReceiptWriter
    from a2a_fabric.identity.trusted_nodes import TrustedNode, TrustedNodes

_log = logging.getLogger(__name__)


def collect_shared_keys(config: Config, psk: str | None) -> list[SharedKey]:
    """The keys of the configuration, and the node's own.

    Raises ConfigError for two callers with the same key or name, for an unknown scope (which a caller would silently
    lack), and for a node that listens beyond this machine without any key.
    """
    _check_scopes(config)
    if any(each.id == OPERATOR_ID for each in config.auth.keys):
        raise ConfigError(f"auth.keys: '{OPERATOR_ID}' is the name of the node's own key (`auth.psk`). Use another id")
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
    """Who is let in: keys, issuers, other nodes and anonymous callers, which may change while the node runs."""

    def __init__(self, config: Config, psk: str | None, base: Path) -> None:
        """Raises ConfigError."""
        self._config = config
        self._psk = psk
        self._base = base
        self._views = _index_views(config)
        self._http: OutboundClient | None = None
        self._tokens: list[Any] = []  # those of earlier settings may still be checking a token
        self._entries: list[DoorResolver] = []
        self._trusted_nodes: TrustedNodes | None = None  # kept when the settings change: it remembers what was used
        self._used_tokens: UsedTokenStore | None = None
        self.keys = SharedKeys(collect_shared_keys(config, psk))

    def build_resolver(self, count_attempt: Callable[[str, str], None], store: Store) -> None:
        """Raises ConfigError."""
        # A store of another package may not remember used tokens; then each node remembers those that it saw.
        self._used_tokens = getattr(store, "used_tokens", None)
        anonymous, tokens = _make_anonymous_principal(self._config), self._build_tokens(self._config)
        self.resolver = Resolver(
            self.keys, anonymous, count_attempt, tokens, self._config.views, build_certificate_callers(self._config)
        )
        self._set_nodes(self._list_nodes(self._config))

    def build_entry(self, door: str, active_policy: ActivePolicy) -> DoorResolver:
        """How one door identifies callers; it follows changes."""
        entry = DoorResolver(door, self._identify, self.resolver.add_credentials, active_policy)
        self._entries.append(entry)
        return entry

    def prepare(self, config: Config) -> Callable[[], None]:
        """Check `auth` and `views` of a new configuration; the function puts both into effect. Raises ConfigError."""
        config = msgspec.structs.replace(self._config, auth=config.auth, views=config.views)
        views = _index_views(config)
        keys, tokens = collect_shared_keys(config, self._psk), self._build_tokens(config)
        certificates, nodes = build_certificate_callers(config), self._list_nodes(config)

        def take_effect() -> None:
            self._config, self._views = config, views
            self.keys.set_configured(keys)
            self.resolver.replace(_make_anonymous_principal(config), tokens, certificates, config.views)
            self._set_nodes(nodes)
            for entry in self._entries:
                entry.set_resolver(self._identify)

        return take_effect

    def find_view(self, name: str) -> View | None:
        return self._views.get(name)

    def build_token_middleware(self) -> TokenMiddleware | None:
        return build_token_middleware(self._config, self.resolver)

    def list_issuers(self) -> tuple[str, ...]:
        return list_token_issuers(self._config)

    def build_identity_middleware(self, body_limit: BodyLimit) -> IdentityMiddleware | None:
        """None on a node that trusts no other: identities that are sent to it say nothing."""
        if self._trusted_nodes is None or not self._config.auth.nodes:
            return None
        return IdentityMiddleware(self._trusted_nodes, body_limit)

    @property
    def _identify(self) -> Resolver | TrustedNodes:
        return self.resolver if self._trusted_nodes is None or not self._config.auth.nodes else self._trusted_nodes

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
        # Loaded on demand: most nodes need no cryptography.
        trusted_issuers = load_module("a2a_fabric.identity.trusted_issuers")
        tokens = trusted_issuers.build_trusted_tokens(
            config.auth.issuers, self._base, config.public_url, self._open_http()
        )
        self._tokens = [*(each for each in self._tokens if each.is_busy), tokens]
        return tokens

    def _list_nodes(self, config: Config) -> list[TrustedNode]:
        """Raises ConfigError."""
        if not config.auth.nodes:
            return []
        own_names = tuple(name for name in (config.public_url, config.node_id) if name is not None)
        trusted_nodes = load_module("a2a_fabric.identity.trusted_nodes")
        nodes: list[TrustedNode] = trusted_nodes.list_trusted_nodes(
            config.auth.nodes, own_names, self._base, self._open_http()
        )
        return nodes

    def _set_nodes(self, nodes: list[TrustedNode]) -> None:
        if self._trusted_nodes is not None:
            self._trusted_nodes.replace(nodes)
        elif nodes:
            trusted_nodes = load_module("a2a_fabric.identity.trusted_nodes")
            self._trusted_nodes = trusted_nodes.TrustedNodes(nodes, self.resolver, used_tokens=self._used_tokens)

    def _open_http(self) -> OutboundClient:
        if self._http is None:
            self._http = OutboundClient()  # unguarded: the operator configured these addresses
        return self._http


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
