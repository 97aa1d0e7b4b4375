"""A client that we know how to install and what to expect of; and how that went, a line for each expectation."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.conformance.clients.place import Place, Unexpected, path_with
from tests.conformance.commands import CommandFailed, run
from tests.conformance.npm import Npm
from tests.system.node import Node

Check = Callable[[Place], Awaitable[None]]
Word = Literal["pass", "FAIL", "skipped"]
_START_SECONDS = 60.0
_LONGEST = 600


@dataclass(frozen=True)
class ClientUnderTest:
    package: str  # NAME@VERSION
    entry: str  # its program, inside the package
    checks: Mapping[str, Check]  # by the sentence that each proves
    is_script: bool = True  # for Node.js; or a program that starts by itself


@dataclass(frozen=True)
class Outcome:
    word: Word
    client: str
    claim: str
    reason: str = ""

    def __str__(self) -> str:
        line = f"  {self.word:8} {self.client}: {self.claim}"
        return f"{line} ({self.reason})" if self.reason else line


async def examine(client: ClientUnderTest, npm: Npm, node: Node) -> AsyncIterator[Outcome]:
    try:
        program = await install_client(client, npm)
    except CommandFailed as failed:
        yield Outcome("skipped", client.package, "cannot be installed here", short(failed))
        return
    for claim, check in client.checks.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            place = Place(node, Path(home), program, path_with(npm.node))
            try:
                await check(place)
            except (Unexpected, CommandFailed, ValueError, KeyError) as failed:
                yield Outcome("FAIL", client.package, claim, f"{type(failed).__name__}: {short(failed)}")
            else:
                yield Outcome("pass", client.package, claim)


async def install_client(client: ClientUnderTest, npm: Npm) -> list[str]:
    """How it is started, and that it can be. Raises CommandFailed."""
    await npm.install_node()
    entry = str(await npm.install(client.package, client.entry))
    program = [npm.node, entry] if client.is_script else [entry]
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": path_with(npm.node), "HOME": home}
        await run([*program, "--version"], seconds=_START_SECONDS, env=env, cwd=Path(home))
    return program


def short(failed: Exception) -> str:
    lines = [line for line in str(failed).splitlines() if not line.startswith("npm warn")]
    return " ".join(" ".join(lines).split())[:_LONGEST]
