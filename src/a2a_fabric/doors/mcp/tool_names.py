"""The names of tools at this door: safe for every model API, unique, and kept.

The canonical names are dotted, and most model APIs refuse dots; one bad name hides a whole list. So a tool is
listed as lower-case letters, digits and underscores, at most 48 of them, starting with a letter. Names that
differ only in underscores count as equal: the later one gets a short hash as suffix, and an assigned name
never changes. Only a tool of an agent that registered itself gives its name up, for one that the operator declares."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping
from operator import itemgetter
from typing import TypeVar

MAX_NAME_LENGTH = 48
MAX_REMEMBERED = 10_000  # names of agents that left and may come back

_SUFFIX_DIGITS = 6  # hexadecimal digits
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UNSAFE_CHARACTERS = re.compile(r"[^a-z0-9]+")
_SAFE_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")

Key = TypeVar("Key", bound=Hashable)
ToolKey = tuple[str, str]  # an agent's id, and the name of its capability


def to_safe_name(words: str) -> str:
    """`percy.parse-Recipe` as `percy_parse_recipe`, of any length."""
    plain = words.replace(".", "_")
    if _SAFE_NAME.fullmatch(plain):  # nearly all names
        return plain
    if not words.isascii():
        plain = "".join(c for c in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(c))
    name = _UNSAFE_CHARACTERS.sub("_", _CAMEL_BOUNDARY.sub("_", plain).lower()).strip("_")
    return name if name[:1].isalpha() else f"t_{name}".rstrip("_")


def fold_name(name: str) -> str:
    """Two names with the same fold count as equal."""
    return name.replace("_", "")


def assign_names(words_by_key: Mapping[Key, str], previous: Mapping[Key, str]) -> dict[Key, str]:
    """A name for each key, made from its words; names in `previous` stay.

    New keys are sorted first, so that two nodes with the same agents assign the same names.
    """
    names = {key: previous[key] for key in words_by_key if key in previous}
    used_folds = {fold_name(name) for name in previous.values()}
    new_keys = [_rank(key, words) for key, words in words_by_key.items() if key not in previous]
    for _, _, text, name, key in sorted(new_keys, key=_RANK):
        names[key] = free_name = _find_free_name(name, text, used_folds.__contains__)
        used_folds.add(fold_name(free_name))
    return {key: names[key] for key in words_by_key}


def remember_names(
    names: Mapping[Key, str], previous: Mapping[Key, str], spare: int = MAX_REMEMBERED
) -> dict[Key, str]:
    """`names`, and up to `spare` names of keys that left and may come back."""
    missing = [key for key in previous if key not in names]
    remembered_names = {key: previous[key] for key in missing[max(0, len(missing) - spare) :]}
    return {**remembered_names, **names}


_RANK = itemgetter(0, 1, 2)
_Ranked = tuple[bool, str, str, str, ToolKey]


def _rank(key: Key, words: str) -> tuple[bool, str, str, str, Key]:
    """By the first three: a key whose safe name is the exact form of its words comes first."""
    name = to_safe_name(words)
    return name != words.replace(".", "_"), words, str(key), name, key


def _find_free_name(name: str, key: str, is_used: Callable[[str], bool]) -> str:
    """`is_used` tells whether a fold is."""
    if len(name) <= MAX_NAME_LENGTH and not is_used(fold_name(name)):
        return name
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    for digits in range(_SUFFIX_DIGITS, MAX_NAME_LENGTH - 1):
        suffixed = f"{name[: MAX_NAME_LENGTH - digits - 1].rstrip('_')}_{digest[:digits]}"
        if not is_used(fold_name(suffixed)):
            return suffixed
    raise AssertionError("two tools have the same hash")


class ToolNames:
    """The names of the tools of a catalog that changes. `reserved` are names that no tool of an agent gets.

    A change costs work for the tools that changed, not for all others.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = frozenset(map(fold_name, reserved))
        self._names: dict[ToolKey, str] = {}
        self._holders: dict[str, ToolKey] = {}  # by fold
        self._registered: set[ToolKey] = set()  # of agents that registered themselves
        self._remembered: dict[ToolKey, str] = {}  # of those that left, the oldest first
        self._former_holders: dict[str, ToolKey] = {}

    def copy(self) -> ToolNames:
        twin = ToolNames()
        twin._reserved = self._reserved
        twin._names, twin._holders = dict(self._names), dict(self._holders)
        twin._registered = set(self._registered)
        twin._remembered, twin._former_holders = dict(self._remembered), dict(self._former_holders)
        return twin

    def __getitem__(self, key: ToolKey) -> str:
        return self._names[key]

    def __len__(self) -> int:
        return len(self._names)

    def release(self, keys: Iterable[ToolKey]) -> None:
        """These tools are gone. Their names are remembered, in case they come back."""
        for key in keys:
            name = self._names.pop(key, None)
            if name is None:
                continue
            fold = fold_name(name)
            del self._holders[fold]
            self._registered.discard(key)
            self._remembered[key] = name
            self._former_holders[fold] = key
        while len(self._remembered) > MAX_REMEMBERED:
            self._forget(next(iter(self._remembered)))

    def assign(
        self, words_by_key: Mapping[ToolKey, str], registered: Collection[ToolKey]
    ) -> Generator[None, None, set[ToolKey]]:
        """Give names to these tools, in small steps; returns the other tools whose names changed."""
        declared_ranks: list[_Ranked] = []
        registered_ranks: list[_Ranked] = []
        for key, words in words_by_key.items():
            (registered_ranks if key in registered else declared_ranks).append(_rank(key, words))
            yield
        renamed: set[ToolKey] = set()
        for _, _, text, name, key in sorted(declared_ranks, key=_RANK):
            loser = self._assign_declared(key, name, text)
            if loser is not None:
                renamed.add(loser)
            yield
        registered_ranks += [_rank(key, ".".join(key)) for key in renamed]
        for _, _, text, name, key in sorted(registered_ranks, key=_RANK):
            self._assign_registered(key, name, text)
            yield
        return renamed

    def _assign_declared(self, key: ToolKey, name: str, text: str) -> ToolKey | None:
        """Returns the tool of a registered agent that loses this name."""
        current = self._names.get(key)
        if current is not None:  # of a registered agent that the operator has declared since
            self._registered.discard(key)
            return None
        remembered = self._remembered.get(key)
        if remembered is None or self._is_kept_from_declared(fold_name(remembered)):
            remembered = _find_free_name(name, text, self._is_kept_from_declared)
        loser = self._holders.get(fold_name(remembered))
        if loser is not None:
            del self._names[loser]
        self._take(key, remembered)
        return loser

    def _assign_registered(self, key: ToolKey, name: str, text: str) -> None:
        self._registered.add(key)
        if key in self._names:
            return
        remembered = self._remembered.get(key)
        if remembered is not None:
            self._forget(key)
            if self._is_kept_from_registered(fold_name(remembered)):
                remembered = None
        self._take(key, remembered or _find_free_name(name, text, self._is_kept_from_registered))

    def _is_kept_from_declared(self, fold: str) -> bool:
        holder = self._holders.get(fold)
        return fold in self._reserved or (holder is not None and holder not in self._registered)

    def _is_kept_from_registered(self, fold: str) -> bool:
        """A registered agent does not get the name of another one that left, either."""
        return fold in self._reserved or fold in self._holders or fold in self._former_holders

    def _take(self, key: ToolKey, name: str) -> None:
        fold = fold_name(name)
        for former in (self._former_holders.get(fold), key):
            if former is not None:
                self._forget(former)
        self._names[key] = name
        self._holders[fold] = key

    def _forget(self, key: ToolKey) -> None:
        name = self._remembered.pop(key, None)
        if name is not None and self._former_holders.get(fold_name(name)) == key:
            del self._former_holders[fold_name(name)]
