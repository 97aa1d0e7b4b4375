"""Source: a folder of agents, a `registry.json`, or a URL of a card or a registry; watched for changes.

An agent that cannot be read is left out, with its problem, and the others are there; if it was read before, its last
good manifest stays. Of two agents of one name the first wins: the registry's own entries come before those of the
registries that it includes, and an earlier include before a later one.

What comes from a URL is foreign: it may name agents that are reached by address, and those are reached through the
guarded client. It never starts a program, reads a file, refers to the environment, or names a git repository."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.federation import AgentOrigin, WordRouting, merge_word_routing
from a2a_fabric.federation.card import PROGRAM_TYPES, manifest_from_card
from a2a_fabric.federation.folders import (
    INSTRUCTIONS_FILE,
    MCP_FILE,
    check_schemas,
    decode_card,
    find_secret_references,
    manifest_from_folder,
    read_folder,
)
from a2a_fabric.federation.git import find_checkout, git_manifest
from a2a_fabric.federation.json_file import MAX_CARD_BYTES, MAX_REGISTRY_BYTES, JSONFile
from a2a_fabric.federation.locations import CARD_FILE, REGISTRY_FILE, is_url
from a2a_fabric.federation.registry_file import (
    REFERENCE_FILE,
    GitLocation,
    LocalLocation,
    RegistryDocument,
    RegistryEntry,
    RemoteLocation,
    apply_entry,
    build_skill_index,
    migrate,
    word_routing_from,
)
from a2a_fabric.federation.settings import FederationSettings
from a2a_fabric.outbound.port import AddressRefused, HTTPClient, OutboundError

_log = logging.getLogger(__name__)

_POLL_INTERVAL = 0.25
_POLL_SHARE = 20  # looking for changes takes at most one part in so many of the time
_FETCH_TIMEOUT = 10.0
_MAX_FETCHES = 8  # at a time
_MAX_DOCUMENTS = 64  # registries that include one another
_MAX_FOLDERS = 20_000

Stamp = tuple[int, int, int] | None


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A registry that was read, from a file or an address."""

    place: str  # its path or URL
    file: JSONFile
    registry: RegistryDocument

    @property
    def is_foreign(self) -> bool:
        return is_url(self.place)

    @property
    def folder(self) -> Path:
        """The folder to which its paths are relative; a registry in `reference/` speaks of the folder above."""
        path = Path(self.place)
        return path.parent.parent if path.parent.name == "reference" else path.parent


class FederationSource:
    def __init__(self, location: str | Path, settings: FederationSettings, http: HTTPClient | None = None) -> None:
        self.name = str(location)
        self.http = http  # the guarded client; the node sets it before the first load
        self._settings = settings
        self._known: dict[str, Manifest] = {}  # the last good manifest of each agent
        self._stamps: dict[Path, Stamp] = {}
        self._folders: dict[Path, tuple[dict[Path, Stamp], Manifest]] = {}  # as they were read
        self._problems: dict[str, str] = {}
        self._word_routing = WordRouting()
        self._has_addresses = False

    @property
    def problems(self) -> Mapping[str, str]:
        return self._problems

    @property
    def word_routing(self) -> WordRouting:
        return self._word_routing

    async def load(self) -> list[Manifest]:
        """Raises ConfigError if the folder, the registry or the card itself cannot be read."""
        self._stamps, self._has_addresses = {}, is_url(self.name)
        problems: dict[str, str] = {}
        if is_url(self.name):
            try:
                manifests = await self._load_url(problems)
            except ConfigError as error:  # an address that is away does not keep the node from starting
                manifests, problems[self.name] = self._known, error.message
        else:
            manifests = await self._load_path(Path(self.name), problems)
        self._problems = problems
        self._known = manifests
        self._folders = {path: known for path, known in self._folders.items() if path / CARD_FILE in self._stamps}
        return list(manifests.values())

    async def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        read_at = time.monotonic()
        interval = _POLL_INTERVAL
        while True:
            await asyncio.sleep(interval)
            started_at = time.monotonic()
            is_due = self._has_addresses and started_at - read_at >= self._settings.refresh_seconds
            if is_due or await asyncio.to_thread(self._has_changed):
                await on_change()
                read_at = time.monotonic()
            interval = max(_POLL_INTERVAL, _POLL_SHARE * (time.monotonic() - started_at))

    def _has_changed(self) -> bool:
        return any(_read_stamp(path) != stamp for path, stamp in list(self._stamps.items()))

    async def _load_path(self, path: Path, problems: dict[str, str]) -> dict[str, Manifest]:
        kind, target = await asyncio.to_thread(self._classify, path)
        if kind == "registry":
            return await self._load_registries(str(target), problems)
        self._word_routing = WordRouting()
        if kind == "card":
            manifest = await asyncio.to_thread(self._read_local, target.parent, "")
            return {manifest.agent_id: manifest}
        manifests = await asyncio.to_thread(self._read_folders, target, problems)
        index = build_skill_index({name: [c.name for c in each.capabilities] for name, each in manifests.items()})
        self._word_routing = WordRouting(skill_index=index)
        return manifests

    def _classify(self, path: Path) -> tuple[str, Path]:
        """Raises ConfigError if there is neither a card nor a registry nor a folder of agents."""
        self._stamps[path] = _read_stamp(path)  # also of what is missing now and comes back later
        if path.is_file():
            return ("card" if path.name == CARD_FILE else "registry"), path
        if not path.is_dir():
            raise ConfigError(f"{path}: there is no such file or folder")
        for name in (REGISTRY_FILE, REFERENCE_FILE):
            self._stamps[path / name] = _read_stamp(path / name)
            if (path / name).is_file():
                return "registry", path / name
        self._stamps[path / CARD_FILE] = _read_stamp(path / CARD_FILE)
        return ("card", path / CARD_FILE) if (path / CARD_FILE).is_file() else ("folders", path)

    def _read_folders(self, path: Path, problems: dict[str, str]) -> dict[str, Manifest]:
        """Every folder below with a card. A folder without one is none of an agent."""
        manifests: dict[str, Manifest] = {}
        folders = (each for each in sorted(path.iterdir()) if each.is_dir() and not each.name.startswith("."))
        for folder in islice(folders, _MAX_FOLDERS):
            card = folder / CARD_FILE
            if not card.exists():
                self._stamps[card] = None
                continue
            try:
                manifest = self._read_local(folder, str(path))
            except ConfigError as error:
                problems[str(card)] = error.message
                self._keep_known(folder.name, manifests)
                continue
            if manifest.agent_id in manifests:
                problems[str(card)] = f"{card}: there is another agent '{manifest.agent_id}'; the first one stays"
                continue
            manifests[manifest.agent_id] = manifest
        return manifests

    def _read_local(self, folder: Path, registry: str) -> Manifest:
        """The manifest of a folder; read again only if a file of it changed. Raises ConfigError."""
        stamps = {folder / name: _read_stamp(folder / name) for name in (CARD_FILE, INSTRUCTIONS_FILE, MCP_FILE)}
        self._stamps |= stamps
        known = self._folders.get(folder)
        if known is None or known[0] != stamps:
            origin = AgentOrigin(location="local", registry=registry)
            known = self._folders[folder] = stamps, manifest_from_folder(read_folder(folder), origin)
        return known[1]

    async def _load_registries(
        self, place: str, problems: dict[str, str], file: JSONFile | None = None
    ) -> dict[str, Manifest]:
        """`file` is what the place holds, if it was read already."""
        documents = await self._collect(place, problems, file)
        manifests: dict[str, Manifest] = {}
        gate = asyncio.Semaphore(_MAX_FETCHES)
        for document in documents:
            entries = {name: each for name, each in document.registry.agents.items() if name not in manifests}
            fetched = {name: each for name, each in entries.items() if _is_card_at_url(each)}
            others = {name: each for name, each in entries.items() if name not in fetched}
            manifests |= await asyncio.to_thread(self._read_entries, document, others, problems)
            pairs = await asyncio.gather(
                *(self._fetch_entry(document, *each, gate, problems) for each in fetched.items())
            )
            manifests |= {name: manifest for name, manifest in pairs if manifest is not None}
        self._word_routing = await asyncio.to_thread(_build_word_routing, documents, manifests)
        return manifests

    async def _collect(self, place: str, problems: dict[str, str], file: JSONFile | None) -> list[Document]:
        """The registry and all that it includes, in the order in which they win. Raises ConfigError for the first."""
        documents: list[Document] = []
        visited: set[str] = set()

        async def read(place: str, chain: tuple[str, ...]) -> None:
            if place in chain:
                problems[place] = f"{chain[-1]}: includes '{place}', which includes it again"
                return
            if place in visited:
                return
            if len(visited) >= _MAX_DOCUMENTS:
                problems[place] = f"{place}: not read: at most {_MAX_DOCUMENTS} registries include one another"
                return
            visited.add(place)
            try:
                document = await self._read_document(place, None if chain else file)
            except ConfigError as error:
                if not chain:
                    raise
                problems[place] = error.message
                return
            documents.append(document)
            for included in document.registry.include:
                try:
                    inner = _resolve_include(document, included)
                except ConfigError as error:
                    problems[f"{place}: {included}"] = error.message
                    continue
                await read(inner, (*chain, place))

        await read(place, ())
        return documents

    async def _read_document(self, place: str, file: JSONFile | None) -> Document:
        if is_url(place):
            self._has_addresses = True
            file = file or await self._fetch(place, MAX_REGISTRY_BYTES)
        else:
            self._stamps[Path(place)] = _read_stamp(Path(place))
            file = await asyncio.to_thread(JSONFile.load, Path(place), MAX_REGISTRY_BYTES)
        return await asyncio.to_thread(decode_registry, file, place)

    def _read_entries(
        self, document: Document, entries: Mapping[str, RegistryEntry], problems: dict[str, str]
    ) -> dict[str, Manifest]:
        manifests: dict[str, Manifest] = {}
        for name, entry in entries.items():
            try:
                manifests[name] = self._read_entry(document, name, entry)
            except ConfigError as error:
                problems[f"{document.place}: {name}"] = error.message
                self._keep_known(name, manifests)
        return manifests

    def _read_entry(self, document: Document, name: str, entry: RegistryEntry) -> Manifest:
        """Raises ConfigError."""
        location, where = entry.location, ("agents", name, "location")
        if isinstance(location, RemoteLocation):
            _check_headers(document, name, location)
            return apply_entry(_address_manifest(name, location, document), entry)
        if document.is_foreign:
            raise document.file.error("a registry at a URL may only name remote agents", where)
        if isinstance(location, LocalLocation):
            manifest = self._read_local(document.folder / location.path, document.place)
            if manifest.agent_id != name:
                card = document.folder / location.path / CARD_FILE
                raise document.file.error(f"the card {card} names the agent '{manifest.agent_id}'", ("agents", name))
        else:
            manifest = self._read_git(document, name, location)
        return apply_entry(manifest, entry)

    def _read_git(self, document: Document, name: str, location: GitLocation) -> Manifest:
        """As the clone's card says, if it was cloned; else as the registry says. Raises ConfigError."""
        try:
            manifest = git_manifest(name, location, document.folder, document.place, self._settings.git)
        except ValueError as exc:
            raise document.file.error(str(exc), ("agents", name, "location")) from exc
        checkout = find_checkout(manifest)
        self._stamps[checkout.link] = _read_stamp(checkout.link)
        return checkout.complete(manifest)

    async def _fetch_entry(
        self, document: Document, name: str, entry: RegistryEntry, gate: asyncio.Semaphore, problems: dict[str, str]
    ) -> tuple[str, Manifest | None]:
        location = entry.location
        assert isinstance(location, RemoteLocation)  # noqa: S101
        self._has_addresses = True
        try:
            _check_headers(document, name, location)
            async with gate:
                file = await self._fetch(location.url, MAX_CARD_BYTES)
            manifest = manifest_from_address(file, location.url, document.place, location.headers)
            if manifest.agent_id != name:
                raise file.error(f"the registry calls this agent '{name}'", ("name",))
        except ConfigError as error:
            problems[f"{document.place}: {name}"] = error.message
            return name, self._known.get(name)
        return name, apply_entry(manifest, entry)

    async def _load_url(self, problems: dict[str, str]) -> dict[str, Manifest]:
        """A card or a registry: whatever the address serves."""
        file = await self._fetch(self.name, MAX_REGISTRY_BYTES)
        if isinstance(file.value, dict) and "agents" in file.value:
            return await self._load_registries(self.name, problems, file)
        manifest = manifest_from_address(file, self.name, self.name, {})
        self._word_routing = WordRouting()
        return {manifest.agent_id: manifest}

    async def _fetch(self, url: str, limit: int) -> JSONFile:
        """Raises ConfigError."""
        if self.http is None:
            raise ConfigError(f"{_strip_query(url)}: addresses cannot be read here")
        try:
            reply = await self.http.request(
                "GET", url, headers={"accept": "application/json"}, timeout=_FETCH_TIMEOUT, limit=limit
            )
        except AddressRefused as exc:
            hint = f"list it in `federation.allow` of fabric.yaml ({urlsplit(url).hostname}) if you trust it"
            raise ConfigError(f"{_strip_query(url)}: cannot be read: {exc}; {hint}") from exc
        except OutboundError as exc:
            raise ConfigError(f"{_strip_query(url)}: cannot be read: {exc}") from exc
        if reply.status != 200:
            raise ConfigError(f"{_strip_query(url)}: cannot be read: the server answered {reply.status}")
        return await asyncio.to_thread(JSONFile.parse, _strip_query(url), reply.body, limit)

    def _keep_known(self, name: str, manifests: dict[str, Manifest]) -> None:
        known = self._known.get(name)
        if known is not None:
            manifests.setdefault(name, known)


def decode_registry(file: JSONFile, place: str) -> Document:
    """Any version as the current one. Raises ConfigError."""
    return Document(place=place, file=file, registry=file.decode(RegistryDocument, migrate(file.value)))


def manifest_from_address(file: JSONFile, url: str, registry: str, headers: Mapping[str, str]) -> Manifest:
    """The manifest of a card that was read from a URL. Raises ConfigError if the card wants more than an address."""
    card = decode_card(file)
    invocation = card.invocation
    if invocation is None:
        raise file.error("a card at a URL needs an `invocation` that says where the agent is")
    if invocation.type in PROGRAM_TYPES or invocation.command is not None or "command" in invocation.options:
        raise file.error("a card at a URL cannot start programs on this machine", ("invocation",))
    if invocation.options:  # they reach files, logins, keys and the environment of this node
        raise file.error("a card at a URL cannot set `options` of a runtime", ("invocation", "options"))
    if not is_url(invocation.url or "") and invocation.type != "grpc":
        raise file.error("a card at a URL needs a `url` with http:// or https://", ("invocation", "url"))
    origin = AgentOrigin(location="remote", registry=_strip_query(registry), url=_strip_query(url))
    manifest = manifest_from_card(card, "", origin)
    check_schemas(manifest, file)
    if headers:
        if urlsplit(invocation.url or "").netloc != urlsplit(url).netloc:  # they may be secrets, meant for that host
            raise file.error(
                "headers are only sent to the host of the card, and this is another", ("invocation", "url")
            )
        manifest = replace(manifest, endpoint={**manifest.endpoint, "headers": dict(headers)})
    return manifest


def _is_card_at_url(entry: RegistryEntry) -> bool:
    return isinstance(entry.location, RemoteLocation) and entry.location.kind == "card"


def _check_headers(document: Document, name: str, location: RemoteLocation) -> None:
    """Raises ConfigError."""
    if document.is_foreign and [*find_secret_references(location.headers)]:
        where = ("agents", name, "location")
        raise document.file.error("a registry at a URL cannot refer to this node's environment", where)


def _build_word_routing(documents: Iterable[Document], manifests: Mapping[str, Manifest]) -> WordRouting:
    """As the registries say; skills that no index names are those of the cards."""
    merged = merge_word_routing(word_routing_from(document.registry) for document in documents)
    index = {skill: agent for skill, agent in merged.skill_index.items() if agent in manifests}
    from_cards = build_skill_index({name: [c.name for c in each.capabilities] for name, each in manifests.items()})
    return replace(merged, skill_index={**from_cards, **index})


def _address_manifest(name: str, location: RemoteLocation, document: Document) -> Manifest:
    """Raises ConfigError for headers that another node is not sent."""
    endpoint: dict[str, Any] = {"uri": location.url}
    is_node = location.kind == "node"
    if location.headers and is_node:
        key, *others = location.headers.items()
        if others or key[0].lower() != "authorization":
            where = ("agents", name, "location", "headers")
            raise document.file.error("another node gets the header Authorization only", where)
        endpoint["psk"] = key[1]
    elif location.headers:
        endpoint["headers"] = dict(location.headers)
    return Manifest(
        agent_id=name,
        endpoint=endpoint,
        runtime="fabric" if is_node else None,
        origin=AgentOrigin(location="remote", registry=_strip_query(document.place), url=_strip_query(location.url)),
    )


def _resolve_include(document: Document, included: str) -> str:
    """Raises ConfigError for a file that a foreign registry names."""
    if is_url(included):
        return included
    if document.is_foreign:
        target = urljoin(document.place, included)
        if urlsplit(target)[:2] != urlsplit(document.place)[:2]:
            raise document.file.error(f"'{included}' leads elsewhere; write its whole URL", ("include",))
        return target
    return str((Path(document.place).parent / included).resolve())


def _strip_query(url: str) -> str:
    """The address as messages and listings show it: a query may hold a secret."""
    return url.partition("?")[0] if is_url(url) else url


def _read_stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
