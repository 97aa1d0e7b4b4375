"""Builds authentication from the configuration: the node's keys, token issuers, anonymous callers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from a2a_fabric.config import Config, parse_listen
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.lazy_import import load_module
from a2a_fabric.core.policy import SCOPE_KINDS, is_known_scope, is_loopback
from a2a_fabric.core.redaction import OPERATOR_ID
from a2a_fabric.identity.resolver import Resolver, SharedKey, SharedKeys
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.web.token_middleware import TokenMiddleware


def build_shared_keys(config: Config, psk: str | None) -> SharedKeys:
    """Raises ConfigError for two callers with the same key or name, for an unknown scope (which a caller would
    silently lack), and for a node that listens beyond this machine without any key.
    """
    _check_scopes(config)
    keys = [SharedKey(principal_id=k.id, secret=k.key, scopes=k.scopes, trust=k.trust) for k in config.auth.keys]
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
    return SharedKeys(keys)


def build_resolver(
    config: Config, keys: SharedKeys, base: Path, count_attempt: Callable[[str, str], None], stack: AsyncExitStack
) -> Resolver:
    """Raises ConfigError."""
    tokens = None
    if config.auth.issuers:
        http = OutboundClient()  # unguarded: the operator configured these addresses
        stack.push_async_callback(http.aclose)
        # Loaded on demand: most nodes need no cryptography.
        trusted_issuers = load_module("a2a_fabric.identity.trusted_issuers")
        tokens = trusted_issuers.build_trusted_tokens(config.auth.issuers, base, config.public_url, http)
        stack.push_async_callback(tokens.aclose)
    return Resolver(keys, _make_anonymous_principal(config), count_attempt, tokens)


def build_token_middleware(config: Config, identify: Resolver) -> TokenMiddleware | None:
    if not config.auth.issuers:
        return None
    scopes = sorted({name for issuer in config.auth.issuers for name in issuer.grants})
    return TokenMiddleware(identify.verify_token, list_token_issuers(config), scopes, config.public_url)


def list_token_issuers(config: Config) -> tuple[str, ...]:
    """The issuers from which callers can get a token for this node."""
    return tuple(each.issuer for each in config.auth.issuers if each.is_server)


def list_exposure_warnings(config: Config) -> list[str]:
    """One warning for each setting that lets callers from other machines in without credentials."""
    host, _ = parse_listen(config.listen)
    if is_loopback(host):
        return []
    messages: list[str] = []
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


def _make_anonymous_principal(config: Config) -> Principal | None:
    if not config.auth.anonymous:
        return None
    host, _ = parse_listen(config.listen)
    return Principal(mode="none", principal_id="anonymous", trust="local" if is_loopback(host) else "public")


def _check_scopes(config: Config) -> None:
    declared = [(f"keys: {key.id}", key.scopes or ()) for key in config.auth.keys]
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
