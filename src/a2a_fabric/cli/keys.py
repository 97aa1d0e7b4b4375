"""`a2a-fabric keys`: keys of callers, kept as hashes in the store.

These commands open the store themselves: they need no node, and all nodes of the store notice at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import typer

from a2a_fabric.admin.keys import (
    check_key_lookalikes,
    check_key_name,
    check_key_scopes,
    check_key_view,
    find_current_key,
    make_new_key,
    render_key,
)
from a2a_fabric.cli.node_setup import AGENTS_FILE, CONFIG_FILE
from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress, parse_duration
from a2a_fabric.cli.output import format_age, print_json, print_line, remark, report_errors
from a2a_fabric.cli.program import NAME
from a2a_fabric.cli.store import open_migrated, open_unchanged, resolve_store
from a2a_fabric.cli.tables import print_table
from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.keys import KeyStore, StoredKey
from a2a_fabric.core.result import format_timestamp
from a2a_fabric.identity.shared_keys import make_key

T = TypeVar("T")

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
        check_key_name(name, {key.id for key in settings.auth.keys})
        check_key_scopes(scopes or [])
        check_key_view(view, [each.name for each in settings.views])
        secret = make_key()
        new = make_new_key(name, secret, tuple(scopes or ()), _parse_trust(trust), view, seconds)
        # A store that does not exist yet is made only where a node will find it.
        is_named = bool(store or config) or any(Path(each).is_file() for each in (CONFIG_FILE, AGENTS_FILE))

        async def create(keys: KeyStore) -> StoredKey:
            check_key_lookalikes(name, settings.auth.list_names(), await keys.list())
            return await keys.add(new)

        added = _run(address, create, may_create=is_named)
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
        print_json({"keys": [render_key(key, now) for key in shown], "count": len(shown)})
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
        old = find_current_key(await keys.list(), name)
        old_lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        new = make_new_key(name, secret, old.scopes, old.trust, old.view, seconds or old_lifetime)
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
        print_json({"ok": True, "revoked": [render_key(key, time.time()) for key in revoked], "count": len(revoked)})
    else:
        ids = ", ".join(key.key_id for key in revoked)
        print_line(f"Revoked {len(revoked)} {'key' if len(revoked) == 1 else 'keys'} of {revoked[0].name}: {ids}.")


def _run(address: str, work: Callable[[KeyStore], Awaitable[T]], *, may_create: bool = False) -> T:
    async def run() -> T:
        async with open_migrated(address) if may_create else open_unchanged(address) as store:
            return await work(store.keys)

    return asyncio.run(run())


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
        print_json({"ok": True, "key": secret, **render_key(key, key.created_at)})
        return
    ends = "does not expire" if key.expires_at is None else f"expires {format_timestamp(key.expires_at)}"
    remark(f"The key of {key.name} ({key.key_id}) {ends}. It is shown only now, so save it:")
    print_line(secret)


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
