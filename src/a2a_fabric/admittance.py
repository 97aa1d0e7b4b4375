"""Who is let in, from the configuration: the node's keys, tokens of issuers, callers who show nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from a2a_fabric.config import Config, split_listen
from a2a_fabric.core.call import Principal
from a2a_fabric.core.disclosure import OPERATOR
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.hosts import is_loopback
from a2a_fabric.core.modules import load
from a2a_fabric.core.policy import KINDS, is_scope
from a2a_fabric.identity.psk import SharedKey, SharedKeys
from a2a_fabric.identity.resolver import Resolver
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.web.introductions import Introductions


def shared_keys(config: Config, psk: str | None) -> SharedKeys:
    """Raises ConfigError: if two callers have the same key or name, and if nobody needs one in front of strangers.

    Also for a scope that is none: a caller would silently lack it.
    """
    _check_scopes(config)
    keys = [SharedKey(principal_id=k.id, secret=k.key, scopes=k.scopes, trust=k.trust) for k in config.auth.keys]
    secret = config.auth.psk or psk
    if secret:
        keys.insert(0, SharedKey(principal_id=OPERATOR, secret=secret))
    owners: dict[bytes, str] = {}
    for key in keys:
        other = owners.setdefault(key.digest, key.principal_id)
        if other != key.principal_id:
            raise ConfigError(f"auth: '{other}' and '{key.principal_id}' have the same key")
        _check_name(key, config)
    host, _ = split_listen(config.listen)
    if not keys and not config.auth.issuers and not is_loopback(host):
        raise ConfigError(f"listen: without any key a node listens on loopback only, not on {host}")
    return SharedKeys(keys)


def resolver(
    config: Config, keys: SharedKeys, base: Path, counted: Callable[[str, str], None], stack: AsyncExitStack
) -> Resolver:
    """Raises ConfigError."""
    tokens = None
    if config.auth.issuers:
        http = OutboundClient()  # to addresses that the operator gave
        stack.push_async_callback(http.aclose)
        trusted = load("a2a_fabric.identity.trusted").trusted  # with its cryptography, which most nodes can do without
        tokens = trusted(config.auth.issuers, base, config.public_url, http)
        stack.push_async_callback(tokens.aclose)
    return Resolver(keys, _anonymous(config), counted, tokens)


def introductions(config: Config, identify: Resolver) -> Introductions | None:
    if not config.auth.issuers:
        return None
    scopes = sorted({name for issuer in config.auth.issuers for name in issuer.grants})
    return Introductions(identify.introduce, servers(config), scopes, config.public_url)


def servers(config: Config) -> tuple[str, ...]:
    """Where callers can go for a token that is good here."""
    return tuple(each.issuer for each in config.auth.issuers if each.is_server)


def warnings(config: Config) -> list[str]:
    """What of the configuration lets callers from other machines in without credentials, and what to do about it."""
    host, _ = split_listen(config.listen)
    if is_loopback(host):
        return []
    found: list[str] = []
    if config.auth.anonymous:
        found.append(
            f"auth.anonymous lets callers without credentials in at {config.listen}, which other machines can reach: "
            "they may call every agent of trust tier 'public'. To keep them out, remove auth.anonymous, or listen on "
            "127.0.0.1 and let a proxy with authentication in front"
        )
    for table in config.doors:
        tier = table.get("anonymous")
        if tier is not None:
            found.append(
                f"doors: {table.get('kind')}: anonymous: {tier} lets callers without credentials in at "
                f"{config.listen}, which other machines can reach, and trusts them as '{tier}'. To keep them out, "
                "remove it, or listen on 127.0.0.1"
            )
    return found


def _anonymous(config: Config) -> Principal | None:
    if not config.auth.anonymous:
        return None
    host, _ = split_listen(config.listen)
    return Principal(mode="none", principal_id="anonymous", trust="local" if is_loopback(host) else "public")


def _check_scopes(config: Config) -> None:
    said = [(f"keys: {key.id}", key.scopes or ()) for key in config.auth.keys]
    for issuer in config.auth.issuers:
        said += [(f"issuers: {issuer.id}", (*issuer.scopes, *(each for own in issuer.grants.values() for each in own)))]
    for where, scopes in said:
        for scope in scopes:
            if not is_scope(scope):
                kinds = ", ".join(f"{kind}:NAME" for kind in KINDS)
                raise ConfigError(f"auth: {where}: '{scope[:64]}' is no scope; it is *, metrics, register, or {kinds}")


def _check_name(key: SharedKey, config: Config) -> None:
    """What an issuer calls somebody must never be what we call somebody else."""
    for issuer in config.auth.issuers:
        if key.principal_id.startswith(f"{issuer.id}:"):
            raise ConfigError(f"auth: '{key.principal_id}' could also be a caller of the issuer '{issuer.id}'")
