"""Whether the version of a card says what changed since the last commit: MAJOR breaks, MINOR adds, PATCH repairs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.agent import normalize_name
from a2a_fabric.federation.card import Card, build_capabilities
from a2a_fabric.federation.folders import AgentFolder
from a2a_fabric.federation.locations import CARD_FILE

_GIT_TIMEOUT = 20.0


def read_committed_cards(folders: list[AgentFolder]) -> Iterator[tuple[AgentFolder, Card]]:
    """Each folder with its card as the last commit has it, where there is one."""
    by_repository: dict[Path, list[AgentFolder]] = {}
    for folder in folders:
        path = folder.path.resolve()
        root = next((each for each in (path, *path.parents) if (each / ".git").exists()), None)
        if root is not None:
            by_repository.setdefault(root, []).append(folder)
    for root, members in by_repository.items():
        for folder, before in zip(members, _read_committed(root, members), strict=True):
            if before is not None:
                yield folder, before


def _read_committed(root: Path, folders: list[AgentFolder]) -> list[Card | None]:
    """The cards as the last commit has them; read by one process, however many there are."""
    names = [f"HEAD:{(each.path.resolve() / CARD_FILE).relative_to(root).as_posix()}\n" for each in folders]
    environ = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(  # noqa: S603  # no shell, and no argument of a card
            ["git", "-C", str(root), "-c", "core.fsmonitor=false", "cat-file", "--batch"],  # noqa: S607  # of the PATH
            input="".join(names).encode(),
            env={**environ, "GIT_CONFIG_GLOBAL": os.devnull},
            capture_output=True,
            timeout=_GIT_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return [None] * len(folders)
    output, cards = done.stdout, list[Card | None]()
    for _ in folders:
        head, _, output = output.partition(b"\n")
        if not head.endswith(b" missing") and head:
            size = int(head.rsplit(b" ", 1)[1])
            content, output = output[:size], output[size + 1 :]
            cards.append(_decode_old(content))
        else:
            cards.append(None)
    return cards


def _decode_old(content: bytes) -> Card | None:
    try:
        return msgspec.json.decode(content, type=Card)
    except msgspec.DecodeError:
        return None


def find_version_problem(before: Card, after: Card) -> str | None:
    """Why the version of a card does not say what changed since it was committed."""
    old = {normalize_name(each.name): each for each in build_capabilities(before.skills, before.capabilities)}
    new = {normalize_name(each.name): each for each in build_capabilities(after.skills, after.capabilities)}
    was, now = _parse_version(before.version), _parse_version(after.version)
    breaking = [f"'{old[name].name}' is gone" for name in old if name not in new]
    for name in old.keys() & new.keys():
        breaking += [
            f"'{new[name].name}' {why}" for why in _compare_inputs(old[name].input_schema, new[name].input_schema)
        ]
    if breaking and now[0] <= was[0]:
        return f"a breaking change needs a new MAJOR version after {before.version}: {'; '.join(sorted(breaking)[:3])}"
    added = [new[name].name for name in new if name not in old]
    if added and now[:2] <= was[:2]:
        return f"a new skill needs a new MINOR version after {before.version}: {', '.join(sorted(added)[:3])}"
    return f"the version went back from {before.version}" if now < was else None


def _parse_version(text: str) -> tuple[int, int, int]:
    major, minor, patch = re.split(r"[-+]", text, maxsplit=1)[0].split(".")
    return int(major), int(minor), int(patch)


def _compare_inputs(old: dict[str, Any] | None, new: dict[str, Any] | None) -> Iterator[str]:
    """What callers of the old schema would stumble over."""
    old, new = old or {}, new or {}
    for name in new.get("required", ()):
        if name not in old.get("required", ()):
            yield f"now requires '{name}'"
    old_fields, new_fields = old.get("properties") or {}, new.get("properties") or {}
    for name in old_fields:
        if name in new_fields and isinstance(old_fields[name], dict) and isinstance(new_fields[name], dict):
            if old_fields[name].get("type") != new_fields[name].get("type"):
                yield f"takes another type of '{name}'"
        elif name not in new_fields and new.get("additionalProperties") is False:
            yield f"no longer takes '{name}'"
