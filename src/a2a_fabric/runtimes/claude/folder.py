"""An agent's folder: what it says about the agent, and which of its files the command line names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

INSTRUCTIONS = "CLAUDE.md"
MCP_CONFIG = ".mcp.json"
PACKAGE = "package.json"

_LOOKED_AT = 64 * 1024  # bytes of a file
_WORDS = 1000


class About(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    description: str = ""
    version: str = ""


def about(folder: Path) -> About:
    """From the first heading and the first paragraph of its instructions, and from its package."""
    heading, paragraph = _beginning(_text(folder / INSTRUCTIONS))
    package = _package(folder / PACKAGE)
    return About(
        name=heading or package.name, description=paragraph or package.description or heading, version=package.version
    )


def _beginning(text: str) -> tuple[str, str]:
    heading = ""
    paragraph: list[str] = []
    for line in map(str.strip, _without_front_matter(text)):
        if line.startswith("#"):
            if paragraph:
                break
            heading = heading or line.lstrip("#").strip()
        elif line:
            paragraph.append(line)
        elif paragraph:
            break
    return heading[:_WORDS], " ".join(paragraph)[:_WORDS]


def _without_front_matter(text: str) -> list[str]:
    lines = text.splitlines()
    if lines and lines[0].strip() == "---" and "---" in lines[1:]:
        return lines[lines.index("---", 1) + 1 :]
    return lines


def _package(path: Path) -> About:
    try:
        told: Any = msgspec.json.decode(_text(path) or "{}")
    except msgspec.DecodeError:
        return About()
    given = {name: told[name][:_WORDS] for name in About.__struct_fields__ if isinstance(told.get(name), str)}
    return About(**given) if isinstance(told, dict) else About()


def _text(path: Path) -> str:
    """Empty for one that is not there."""
    try:
        with path.open("rb") as file:
            return file.read(_LOOKED_AT).decode(errors="replace")
    except OSError:
        return ""
