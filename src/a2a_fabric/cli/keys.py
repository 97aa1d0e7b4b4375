"""`a2a-fabric keys`: keys of callers, kept as hashes in the store.

Without --url these commands open the store themselves: they need no node, and all nodes of the store notice at once.
With it they use the admin API of the node, whose store may be out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar, get_args

import typer

from a2a_fabric.admin.keys import CallerKeys, KeyRequest, check_key_request
from a2a_fabric.cli.connection import administer
from a2a_fabric.cli.node_setup import AGENTS_FILE, CONFIG_FILE
from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress, Token, parse_duration, parse_time
from a2a_fabric.cli.output import format_age, print_json, print_line, print_table, remark, report_errors
from a2a_fabric.cli.program import NAME
from a2a_fabric.cli.store import open_migrated, open_unchanged, resolve_store
from a2a_fabric.config import read_environment
from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.result import format_timestamp

T = TypeVar("T")

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="The caller's name in logs, envelopes and policies.")]
Lifetime = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="How long the key is valid: 12h, 90d. Default: until revoked."),
]
NodeUrl = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Ask this node, instead of opening the store. Default: FABRIC_URL."),
]


class _Keys(Protocol):
    """Keys as dictionaries, as the admin API shows them. All methods raise FabricError."""

    def create(self, request: KeyRequest) -> dict[str, Any]: ...
    def list_all(self) -> list[dict[str, Any]]: ...
    def rotate(self, name: str, overlap: float, lifetime: float | None) -> dict[str, Any]: ...
    def revoke(self, name: str) -> list[dict[str, Any]]: ...


class _KeysAtNode:
    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self._token = token

    def create(self, request: KeyRequest) -> dict[str, Any]:
        return self._ask(
            "key.create",
            name=request.name,
            scopes=request.scopes,
            trust=request.trust,
            view=request.view,
            days=_to_days(request.lifetime),
        )

    def list_all(self) -> list[dict[str, Any]]:
        return [*self._ask("keys")["keys"]]

    def rotate(self, name: str, overlap: float, lifetime: float | None) -> dict[str, Any]:
        return self._ask("key.rotate", name=name, overlap_seconds=overlap, days=_to_days(lifetime))

    def revoke(self, name: str) -> list[dict[str, Any]]:
        return [*self._ask("key.revoke", name=name)["revoked"]]

    def _ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        return administer(self._url, self._token, request, **arguments)


class _KeysInStore:
    def __init__(self, config: Path | None, store: str | None) -> None:
        self._settings, self._address = resolve_store(config, store)
        # A store that does not exist yet is made only where a node will find it.
        self._may_create = bool(store or config) or any(Path(each).is_file() for each in (CONFIG_FILE, AGENTS_FILE))

    def create(self, request: KeyRequest) -> dict[str, Any]:
        check_key_request(request, self._settings)  # before the store is made
        return self._run(lambda keys: keys.create(request), may_create=self._may_create)

    def list_all(self) -> list[dict[str, Any]]:
        return self._run(lambda keys: keys.list_all())

    def rotate(self, name: str, overlap: float, lifetime: float | None) -> dict[str, Any]:
        return self._run(lambda keys: keys.rotate(name, overlap, lifetime))

    def revoke(self, name: str) -> list[dict[str, Any]]:
        return self._run(lambda keys: keys.revoke(name))

    def _run(self, work: Callable[[CallerKeys], Awaitable[T]], *, may_create: bool = False) -> T:
        async def run() -> T:
            async with open_migrated(self._address) if may_create else open_unchanged(self._address) as store:
                return await work(CallerKeys(store.keys, self._settings))

        return asyncio.run(run())


def _find_keys(store: str | None, config: Path | None, url: str | None, token: str | None) -> _Keys:
    """Raises BadInput, ConfigError."""
    if store or config:
        if url:
            raise BadInput("Name a node with --url, or a store with --store or --config, but not both")
        return _KeysInStore(config, store)
    node_url = url or read_environment().get("FABRIC_URL")
    return _KeysInStore(None, None) if node_url is None else _KeysAtNode(node_url, token)


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
    url: NodeUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Make a key for a caller.

    The key is shown once, on stdout; the store keeps only its hash.

    Example: a2a-fabric keys create reader --scope agent:percy --for 90d
    """
    request = KeyRequest(
        name=name,
        scopes=tuple(scopes or ()),
        trust=_parse_trust(trust),
        view=view,
        lifetime=None if lifetime is None else _parse_lifetime(lifetime),
    )
    with report_errors(as_json=as_json):
        key = _find_keys(store, config, url, token).create(request)
    _show_new_key(key, as_json=as_json)


def list_keys(
    ended: Annotated[bool, typer.Option("--all", help="Also keys that expired or were revoked.")] = False,
    store: StoreAddress = None,
    config: ConfigFile = None,
    url: NodeUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List the keys of callers in the store.

    Example: a2a-fabric keys list
    """
    with report_errors(as_json=as_json):
        keys = _find_keys(store, config, url, token).list_all()
    shown = [key for key in keys if ended or key["state"] not in ("expired", "revoked")]
    if as_json:
        print_json({"keys": shown, "count": len(shown)})
    elif shown:
        columns = ("name", "id", "state", "scopes", "trust", "view", "expires", "last used")
        print_table(columns, map(_to_row, shown))
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
    url: NodeUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Replace the key of a caller by a new one with the same rights.

    Both can be used until the overlap ends.

    Example: a2a-fabric keys rotate reader --overlap 1h
    """
    overlap_seconds = parse_duration(overlap, "--overlap")
    seconds = None if lifetime is None else _parse_lifetime(lifetime)
    with report_errors(as_json=as_json):
        key = _find_keys(store, config, url, token).rotate(name, overlap_seconds, seconds)
    _show_new_key(key, as_json=as_json)
    if not as_json:
        ends_at = parse_time(key["created_at"], "created_at") + overlap_seconds
        until = f"until {format_timestamp(ends_at)}" if overlap_seconds else "no longer"
        remark(f"The old key can be used {until}.")


def revoke_key(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="All keys of a name, or the one key with this id.")],
    store: StoreAddress = None,
    config: ConfigFile = None,
    url: NodeUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Revoke keys at once, on all nodes of the store.

    Example: a2a-fabric keys revoke reader
    """
    with report_errors(as_json=as_json):
        revoked = _find_keys(store, config, url, token).revoke(name)
    if as_json:
        print_json({"ok": True, "revoked": revoked, "count": len(revoked)})
    else:
        ids = ", ".join(key["key_id"] for key in revoked)
        print_line(f"Revoked {len(revoked)} {'key' if len(revoked) == 1 else 'keys'} of {revoked[0]['name']}: {ids}.")


def _to_days(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 86_400


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


def _show_new_key(key: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": True, **key})
        return
    ends = "does not expire" if key["expires_at"] is None else f"expires {key['expires_at']}"
    remark(f"The key of {key['name']} ({key['key_id']}) {ends}. It is shown only now, so save it:")
    print_line(key["key"])


def _to_row(key: dict[str, Any]) -> tuple[str, ...]:
    used_at = key["last_used_at"]
    return (
        key["name"],
        key["key_id"],
        key["state"],
        " ".join(key["scopes"]),
        key["trust"],
        key["view"] or "",
        key["expires_at"] or "",
        "never" if used_at is None else format_age(parse_time(used_at, "last_used_at")),
    )
