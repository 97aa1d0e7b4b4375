"""`a2a-fabric keys`: keys of callers, kept as hashes in the store.

These commands open the store themselves: they need no node, and all nodes of the store notice at once."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from a2a_fabric.cli.node_setup import AGENTS_FILE, CONFIG_FILE
from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress, parse_duration
from a2a_fabric.cli.output import format_age, print_json, print_line, remark, report_errors
from a2a_fabric.cli.program import NAME
from a2a_fabric.cli.store import open_migrated, open_unchanged, resolve_store
from a2a_fabric.cli.tables import print_table
from a2a_fabric.config import Config
from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import BadInput, Conflict
from a2a_fabric.core.keys import KeyStore, NewKey, StoredKey
from a2a_fabric.core.policy import SCOPE_KINDS, is_known_scope
from a2a_fabric.core.result import format_timestamp
from a2a_fabric.identity.shared_keys import hash_key, make_key
from a2a_fabric.registry.names import ALWAYS_RESERVED

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_PREFIX = "key-"

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="The caller's name in logs, envelopes and policies.")]
Lifetime = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="How long the key is valid: 12h, 90d. Default: until revoked."),
]


def create_key(
    name: KeyName,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", metavar="SCOPE", help="What the key may do, such as agent:percy; * is everything. Repeatable."
        ),
    ] = None,
    trust: Annotated[
        str, typer.Option(help="Which trust tiers its holder reaches: local (all), org, public.")
    ] = "local",
    view: Annotated[str | None, typer.Option(help="A view beyond which its holder sees and calls nothing.")] = None,
    lifetime: Lifetime = None,
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make a key for a caller.

    The key is shown once, on stdout; the store keeps only its hash.

    Example: a2a-fabric keys create reader --scope agent:percy --for 90d
    """
    seconds = None if lifetime is None else _parse_lifetime(lifetime)
    with report_errors(as_json=as_json):
        settings, address = resolve_store(config, store)
        _check_name(name, settings)
        _check_scopes(scopes or [])
        _check_view(view, settings)
        secret = make_key()
        new = _make_new_key(name, secret, tuple(scopes or ()), _parse_trust(trust), view, seconds)
        # A store that does not exist yet is made only where a node will find it.
        is_named = bool(store or config) or any(Path(each).is_file() for each in (CONFIG_FILE, AGENTS_FILE))
        added = _run(address, lambda keys: keys.add(new), may_create=is_named)
    _show_new_key(added, secret, as_json=as_json)


def list_keys(
    ended: Annotated[bool, typer.Option("--all", help="Also keys that expired or were revoked.")] = False,
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List the keys of callers in the store.

    Example: a2a-fabric keys list
    """
    with report_errors(as_json=as_json):
        _, address = resolve_store(config, store)
        keys, now = _run(address, lambda keys: keys.list()), time.time()
    shown = [key for key in keys if ended or key.is_usable(now)]
    if as_json:
        print_json({"keys": [_to_json(key, now) for key in shown], "count": len(shown)})
    elif shown:
        columns = ("name", "id", "state", "scopes", "trust", "view", "expires", "last used")
        print_table(columns, [_to_row(key, now) for key in shown])
    else:
        remark(f"The store holds no key. Make one with: {NAME} keys create NAME --scope SCOPE")


def rotate_key(
    name: KeyName,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old key can still be used: 0s, 1h, 7d.")
    ] = "1d",
    lifetime: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="How long the new key is valid. Default: as long as the old one was."
        ),
    ] = None,
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Replace the key of a caller by a new one with the same rights.

    Both can be used until the overlap ends.

    Example: a2a-fabric keys rotate reader --overlap 1h
    """
    overlap_seconds = parse_duration(overlap, "--overlap")
    seconds = None if lifetime is None else _parse_lifetime(lifetime)
    secret = make_key()

    async def rotate(keys: KeyStore) -> StoredKey:
        old = _find_current(await keys.list(), name)
        old_lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        new = _make_new_key(name, secret, old.scopes, old.trust, old.view, seconds or old_lifetime)
        return await keys.add(new, overlap=overlap_seconds)

    with report_errors(as_json=as_json):
        _, address = resolve_store(config, store)
        added = _run(address, rotate)
    _show_new_key(added, secret, as_json=as_json)
    if not as_json:
        until = f"until {format_timestamp(added.created_at + overlap_seconds)}" if overlap_seconds else "no longer"
        remark(f"The old key can be used {until}.")


def revoke_key(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="All keys of a name, or the one key with this id.")],
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Revoke keys at once, on all nodes of the store.

    Example: a2a-fabric keys revoke reader
    """
    with report_errors(as_json=as_json):
        _, address = resolve_store(config, store)
        revoked = _run(address, lambda keys: keys.revoke(name))
        if not revoked:
            raise BadInput(f"There is no usable key '{name}'. List the keys with: {NAME} keys list")
    if as_json:
        print_json({"ok": True, "revoked": [_to_json(key, time.time()) for key in revoked], "count": len(revoked)})
    else:
        ids = ", ".join(key.key_id for key in revoked)
        print_line(f"Revoked {len(revoked)} {'key' if len(revoked) == 1 else 'keys'} of {revoked[0].name}: {ids}.")


def _run(address: str, work: Callable[[KeyStore], Awaitable[T]], *, may_create: bool = False) -> T:
    async def run() -> T:
        async with open_migrated(address) if may_create else open_unchanged(address) as store:
            return await work(store.keys)

    return asyncio.run(run())


def _make_new_key(
    name: str, secret: str, scopes: tuple[str, ...], trust: TrustTier, view: str | None, lifetime: float | None
) -> NewKey:
    return NewKey(
        key_id=_ID_PREFIX + secrets.token_hex(6),
        name=name,
        digest=hash_key(secret),
        scopes=scopes,
        trust=trust,
        view=view,
        lifetime=lifetime,
    )


def _find_current(keys: Sequence[StoredKey], name: str) -> StoredKey:
    """The newest usable key of a name. Raises Conflict."""
    usable = [key for key in keys if key.name == name and key.is_usable(time.time())]
    if not usable:
        raise Conflict(f"There is no usable key of '{name}'. Make one with: {NAME} keys create {name}")
    return max(usable, key=lambda key: (not key.replaced, key.created_at))


def _check_name(name: str, config: Config) -> None:
    """Raises BadInput."""
    if not _NAME.fullmatch(name) or name.startswith(_ID_PREFIX):
        raise BadInput(
            f"'{name[:64]}' cannot be the name of a caller: use letters, digits, '.', '_' and '-', at most 64, not "
            f"beginning with '{_ID_PREFIX}'"
        )
    if name.lower() in ALWAYS_RESERVED:
        raise BadInput(f"'{name}' is a name that the node uses itself. Choose another one")
    if any(key.id == name for key in config.auth.keys):
        raise BadInput(f"'{name}' has a key in the configuration (auth.keys). Choose another name, or remove that one")


def _check_scopes(scopes: Sequence[str]) -> None:
    """Raises BadInput."""
    if not scopes:
        raise BadInput("Say what the key may do with --scope: agent:ID, capability:NAME, …, or * for everything")
    for scope in scopes:
        if not is_known_scope(scope) or " " in scope:
            kinds = ", ".join(f"{kind}:NAME" for kind in SCOPE_KINDS)
            raise BadInput(f"'{scope[:64]}' is not a scope; use *, metrics, register, or {kinds}")


def _check_view(view: str | None, config: Config) -> None:
    """Raises BadInput."""
    names = [each.name for each in config.views]
    if view is not None and view not in names:
        raise BadInput(f"The configuration has no view '{view[:64]}'. Its views are: {', '.join(names) or 'none'}")


def _parse_trust(text: str) -> TrustTier:
    tiers: tuple[TrustTier, ...] = get_args(TrustTier)
    for tier in tiers:
        if tier == text:
            return tier
    raise typer.BadParameter(f"'{text}' is not one of {', '.join(tiers)}", param_hint="--trust")


def _parse_lifetime(text: str) -> float:
    seconds = parse_duration(text, "--for")
    if seconds <= 0:
        raise typer.BadParameter("must be longer than nothing", param_hint="--for")
    return seconds


def _show_new_key(key: StoredKey, secret: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": True, "key": secret, **_to_json(key, key.created_at)})
        return
    ends = "does not expire" if key.expires_at is None else f"expires {format_timestamp(key.expires_at)}"
    remark(f"The key of {key.name} ({key.key_id}) {ends}. It is shown only now, so save it:")
    print_line(secret)


def _to_json(key: StoredKey, now: float) -> dict[str, Any]:
    return {
        "name": key.name,
        "key_id": key.key_id,
        "state": key.describe_state(now),
        "scopes": list(key.scopes),
        "trust": key.trust,
        "view": key.view,
        "created_at": format_timestamp(key.created_at),
        "expires_at": None if key.expires_at is None else format_timestamp(key.expires_at),
        "last_used_at": None if key.last_used_at is None else format_timestamp(key.last_used_at),
    }


def _to_row(key: StoredKey, now: float) -> tuple[str, ...]:
    return (
        key.name,
        key.key_id,
        key.describe_state(now),
        " ".join(key.scopes),
        key.trust,
        key.view or "",
        "" if key.expires_at is None else format_timestamp(key.expires_at),
        "never" if key.last_used_at is None else format_age(key.last_used_at),
    )
