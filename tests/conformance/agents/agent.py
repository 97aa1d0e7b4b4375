"""An agent that we know how to install and what to expect of, and a home for it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.commands import NOWHERE


class Home:
    """For one check: an empty folder, and how the program is started with nothing of our own environment."""

    def __init__(self, program: Sequence[str], home: Path) -> None:
        self.program = list(program)
        self.home = home

    @property
    def env(self) -> dict[str, str]:
        return {**NOWHERE, "HOME": str(self.home), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}

    @property
    def is_empty(self) -> bool:
        """Whether no process has this home."""
        mark = f"HOME={self.home}\0".encode()
        return not any(mark in _environ(process) for process in Path("/proc").glob("[0-9]*"))


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True)
class AgentUnderTest:
    package: str  # NAME@VERSION
    entry: str  # its program, inside the package
    checks: Mapping[str, Callable[[Any], Awaitable[None]]]  # by the sentence that each proves
    home: Callable[[Sequence[str], Path], Home] = Home
    is_script: bool = True  # for Node.js; or a program that starts by itself
