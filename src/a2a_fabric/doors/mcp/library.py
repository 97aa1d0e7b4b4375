"""Which prompts and resources there are: those of every agent that has some.

Everything here is read from memory: an agent that is slow, dead or gone wild changes
nothing for the others. What was worked out is kept until the catalog or a library
changes. Who may use all of an agent is shown what it holds, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.policy import reach_of, refusal
from a2a_fabric.doors.mcp.addresses import AGENTS, Addresses, Key, dotted
from a2a_fabric.doors.mcp.tool import AGENT_KEY, NAME_KEY
from a2a_fabric.outbound.library import Entries, Holdings, Libraries

ORIGINAL_KEY = "a2a-fabric/original"

Kind = Literal["prompts", "resources"]

_LISTS_KEPT = 256  # one for each kind of caller


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """`address` is its name or URI here, `original` the one its agent gave it."""

    address: str
    original: str
    manifest: Manifest
    described: dict[str, Any]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask, and for what."""

    manifest: Manifest
    original: str


class _Lists(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of caller is shown."""

    prompts: list[dict[str, Any]]
    resources: list[dict[str, Any]]
    templates: list[dict[str, Any]]


class _Table:
    """The items of one state of the catalog and the libraries, each by all of its names."""

    def __init__(self, held: Sequence[tuple[Manifest, Holdings]], addresses: Addresses) -> None:
        self.manifests = {manifest.agent_id: manifest for manifest, _ in held}
        keys = [(m.agent_id, each["name"]) for m, holdings in held for each in holdings.prompts]
        given = addresses.of_prompts(keys)
        self.prompts = list(_items(held, "prompts", "name", given.__getitem__))
        self.resources = list(_items(held, "resources", "uri", addresses.of_resource))
        self.templates = list(_items(held, "templates", "uriTemplate", addresses.of_template))
        self.prompt_of: dict[str, Item] = {}
        # Agent ids may hold dots: of two with the same dotted name the longer id wins, as for tools.
        for item in sorted(self.prompts, key=lambda each: len(each.manifest.agent_id)):
            self.prompt_of[dotted((item.manifest.agent_id, item.original))] = item
        self.prompt_of.update((item.address, item) for item in self.prompts)
        self.resources_of = _by_original(self.resources)
        self.templates_of = _by_original(self.templates)
        self.template_at = {item.address: item for item in self.templates}
        self.lists: dict[tuple[Any, ...], _Lists] = {}


class Library:
    """`holders` are the agents whose things are shown, as of now; `catalog` is another whenever they are others."""

    def __init__(
        self, libraries: Libraries, catalog: Callable[[], object], holders: Callable[[], Sequence[Manifest]]
    ) -> None:
        self._libraries = libraries
        self._catalog = catalog
        self._holders = holders
        self._addresses = Addresses()
        self._state: tuple[object, int] | None = None
        self._table = _Table((), self._addresses)
        self._news: set[Kind] = set()
        self.news()

    def news(self) -> set[Kind]:
        """Which lists have changed since this was last asked; also those that are as they were, if they were shown
        otherwise in between."""
        self._current()
        news, self._news = self._news, set()
        return news

    def prompts(self, principal: Principal) -> Sequence[dict[str, Any]]:
        return self._shown(principal).prompts

    def resources(self, principal: Principal) -> Sequence[dict[str, Any]]:
        return self._shown(principal).resources

    def templates(self, principal: Principal) -> Sequence[dict[str, Any]]:
        return self._shown(principal).templates

    def prompt(self, name: str, principal: Principal) -> Found | None:
        item = self._current().prompt_of.get(name)
        return _found(item) if item is not None and _is_open(principal, item.manifest) else None

    def resource(self, uri: str, principal: Principal) -> Found | None:
        """By our URI, listed or not; by the agent's own, if only one agent can be meant."""
        table = self._current()
        if uri.startswith(AGENTS):
            agent_id, original = self._addresses.at(uri) or ("", "")
            manifest = table.manifests.get(agent_id)
            if manifest is None or not _is_open(principal, manifest):
                return None
            return Found(manifest=manifest, original=original)
        return _only(table.resources_of.get(uri, ()), principal) or self._expanded(table, uri, principal)

    def template(self, template: str, principal: Principal) -> Found | None:
        table = self._current()
        item = table.template_at.get(template)
        if item is not None:
            return _found(item) if _is_open(principal, item.manifest) else None
        return _only(table.templates_of.get(template, ()), principal)

    def address_of(self, found: Found, uri: str) -> str:
        """What another resource of the same agent is called here."""
        return self._addresses.of_resource((found.manifest.agent_id, uri))

    def _expanded(self, table: _Table, uri: str, principal: Principal) -> Found | None:
        """A URI that is listed nowhere may follow from somebody's template."""
        items = (item for item in table.templates if _fits(item.original, uri))
        found = _only(items, principal)
        return None if found is None else Found(manifest=found.manifest, original=uri)

    def _shown(self, principal: Principal) -> _Lists:
        table = self._current()
        reach = reach_of(principal)
        lists = table.lists.get(reach)
        if lists is None:
            if len(table.lists) >= _LISTS_KEPT:
                table.lists.clear()
            lists = table.lists[reach] = _Lists(
                prompts=_open_to(principal, table.prompts),
                resources=_open_to(principal, table.resources),
                templates=_open_to(principal, table.templates),
            )
        return lists

    def _current(self) -> _Table:
        catalog, version = self._catalog(), self._libraries.version
        if self._state is None or self._state[0] is not catalog or self._state[1] != version:
            found = ((manifest, self._libraries.of(manifest.agent_id)) for manifest in self._holders())
            held = [(manifest, library.holdings) for manifest, library in found if library is not None]
            before, self._table = self._table, _Table(held, self._addresses)
            self._news.update(_differences(before, self._table))
            self._state = (catalog, version)
        return self._table


def _differences(before: _Table, now: _Table) -> Iterator[Kind]:
    if not _same(before.prompts, now.prompts):
        yield "prompts"
    if not _same(before.resources, now.resources) or not _same(before.templates, now.templates):
        yield "resources"


def _items(
    held: Iterable[tuple[Manifest, Holdings]],
    kind: Literal["prompts", "resources", "templates"],
    field: str,
    address_of: Callable[[Key], str],
) -> Iterator[Item]:
    for manifest, holdings in held:
        entries: Entries = getattr(holdings, kind)
        for original, entry in {str(entry[field]): entry for entry in entries}.items():  # a list may repeat itself
            key = (manifest.agent_id, original)
            address = address_of(key)
            meta = {**(entry.get("_meta") or {}), AGENT_KEY: manifest.agent_id, ORIGINAL_KEY: original}
            described = {**entry, field: address, "_meta": meta}
            if kind == "prompts":
                described["title"] = entry.get("title") or original
                meta[NAME_KEY] = dotted(key)
            yield Item(address=address, original=original, manifest=manifest, described=described)


def _by_original(items: Iterable[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.original, []).append(item)
    return found


def _found(item: Item) -> Found:
    return Found(manifest=item.manifest, original=item.original)


def _is_open(principal: Principal, manifest: Manifest) -> bool:
    """Scopes name capabilities; who may use only some of them has no claim to what else an agent holds."""
    return refusal(principal, manifest, "*") is None


def _open_to(principal: Principal, items: Iterable[Item]) -> list[dict[str, Any]]:
    return [item.described for item in items if _is_open(principal, item.manifest)]


def _only(items: Iterable[Item], principal: Principal) -> Found | None:
    """The one that this caller may use, if there is exactly one agent with such a thing."""
    mine = {item.manifest.agent_id: item for item in items if _is_open(principal, item.manifest)}
    return _found(next(iter(mine.values()))) if len(mine) == 1 else None


def _same(before: Sequence[Item], now: Sequence[Item]) -> bool:
    return len(before) == len(now) and all(a.described == b.described for a, b in zip(before, now, strict=True))


def _fits(template: str, uri: str) -> bool:
    if not uri.startswith(template.partition("{")[0]):
        return False
    try:
        return UriTemplate.parse(template).match(uri) is not None
    except InvalidUriTemplate:
        return False
