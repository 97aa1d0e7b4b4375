"""YAML files decoded strictly into structs, with errors that name file, line, key and the nearest valid key.

Files are parsed once at full speed; line numbers are looked up only for an error message."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import inspect

from a2a_fabric.core.errors import ConfigError, suggest_nearest

T = TypeVar("T")
YamlPath = tuple[str | int, ...]

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LOCATION = re.compile(r" - at `(?:key in )?\$(.*)`$")
_PATH_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MAX_BYTES = 64 * 1024 * 1024
_PART_BYTES = 64 * 1024  # of a long list that is loaded in parts
_LIST_ENTRY = re.compile(r"^- ", re.MULTILINE)


class _UniqueKeyLoader(_SafeLoader):  # type: ignore[misc]  # the base class is known only at run time
    """A safe loader that refuses a key written twice; plain YAML would silently drop one of the values."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key '{key.value}' is written twice", key.start_mark
                    )
                keys.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


@contextmanager
def pause_gc() -> Iterator[None]:
    """Loading a large file creates a million objects and no garbage; collections would take longer than loading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load_long_list(text: str) -> list[Any] | None:
    """The value of a file that is one long list, part after part; None for any other file.

    A parsed text takes a hundred times its size until its value is made, and the heap does not shrink again.
    """
    if len(text) <= 2 * _PART_BYTES:
        return None
    value: list[Any] = []
    begin = 0
    try:
        for end in (*(match.start() for match in _LIST_ENTRY.finditer(text)), len(text)):
            if end - begin < _PART_BYTES and end < len(text):
                continue
            part = yaml.load(text[begin:end], Loader=_UniqueKeyLoader)  # noqa: S506  # a safe loader
            if not isinstance(part, list):
                return None
            value += part
            begin = end
    except (yaml.YAMLError, ValueError, RecursionError):
        return None  # an alias, a second document or a mistake: the whole text decides, and has the right lines
    return value


class YAMLFile:
    """A file that was read: its name, its text, its value."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        try:
            with pause_gc():
                self.value: Any = _load_long_list(text) or yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506  # a safe loader
        except yaml.YAMLError as exc:
            mark = getattr(exc, "problem_mark", None)
            where = f"{name}:{mark.line + 1}" if mark else name
            raise ConfigError(f"{where}: not valid YAML: {getattr(exc, 'problem', None) or exc}") from exc
        except (ValueError, RecursionError) as exc:  # an invalid date or number, or nested too deeply
            raise ConfigError(f"{name}: not valid YAML: {exc}") from exc

    @classmethod
    def read(cls, path: Path) -> YAMLFile:
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ConfigError(f"{path}: larger than {_MAX_BYTES} bytes")
            return cls(str(path), path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc

    def decode(self, kind: type[T], value: Any = None, location: YamlPath = ()) -> T:
        """`value` (or the whole file) as `kind`; raises ConfigError."""
        value = self.value if value is None else value
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as exc:
            for steps, key, allowed in _find_unknown_keys(inspect.type_info(kind), value, location):
                raise self.error(f"unknown key '{key}'{suggest_nearest(key, allowed)}", (*steps, key)) from exc
            raise self.error(*_split_location(str(exc), location)) from exc
        except RecursionError as exc:
            raise self.error("nested too deeply, or contains itself", location) from exc

    def error(self, message: str, location: YamlPath = ()) -> ConfigError:
        path = _format_path(location)
        return ConfigError(f"{self.name}:{self.find_line(location)}: {path + ': ' if path else ''}{message}")

    def find_line(self, location: YamlPath) -> int:
        """The line of this location in the document; if it does not exist, the line of the nearest parent."""
        node = yaml.compose(self.text, Loader=_SafeLoader)
        line_index = node.start_mark.line if node is not None else 0
        for step in location:
            child = _find_child(node, step)
            if child is None:
                break
            line_index, node = child
        return line_index + 1


def _find_child(node: Any, step: str | int) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return key.start_mark.line, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line, node.value[step]
    return None


def _split_location(message: str, location: YamlPath) -> tuple[str, YamlPath]:
    """Separate msgspec's message from the location at its end."""
    match = _LOCATION.search(message)
    if match is None:
        return message, location
    steps: list[str | int] = list(location)
    for name, number in _PATH_STEP.findall(match[1]):
        steps.append(name or (int(number) if number.isdigit() else 0))
    return message[: match.start()], tuple(steps)


def _format_path(location: YamlPath) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(".")


def _find_unknown_keys(kind: Any, value: Any, location: YamlPath) -> Iterator[tuple[YamlPath, str, list[str]]]:
    """Keys that the structs do not have, each with its location and the valid keys there."""
    if isinstance(kind, inspect.Metadata):
        yield from _find_unknown_keys(kind.type, value, location)
    elif isinstance(kind, inspect.UnionType):
        for option in kind.types:
            yield from _find_unknown_keys(option, value, location)
    elif isinstance(kind, inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, inner in value.items():
            if key in fields:
                yield from _find_unknown_keys(fields[key], inner, (*location, key))
            elif kind.forbid_unknown_fields:
                yield location, str(key), list(fields)
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _find_unknown_keys(kind.item_type, inner, (*location, number))
    elif isinstance(kind, inspect.DictType) and isinstance(value, dict):
        for key, inner in value.items():
            yield from _find_unknown_keys(kind.value_type, inner, (*location, str(key)))
