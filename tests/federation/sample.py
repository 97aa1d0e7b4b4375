"""The federation of `examples/federation` in a folder of the test: three local agents, one git agent, one remote."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.fixtures.agents.calling import HERE
from tests.fixtures.node import Node, running

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "federation"


@contextmanager
def serving_far() -> Iterator[str]:
    """The remote agent; yields the URL of its card."""
    handler = runpy.run_path(str(EXAMPLE / "remote" / "server.py"))["Handler"]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/agent.json"
        finally:
            server.shutdown()
            thread.join()


def make_repository(target: Path) -> str:
    """A bare repository with the files of the agent `wise`; its commit."""
    commit = runpy.run_path(str(EXAMPLE / "prepare.py"))["make_repository"](target)
    return str(commit)


def install_claude(folder: Path) -> dict[str, str]:
    """An environment in which `claude` is the program that stands in for it in tests."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "claude"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {HERE / "claude_program.py"} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "CLAUDE_CONFIG_DIR": str(folder / "config")}


def copy_example(folder: Path, far: str | None = None) -> Path:
    """The example in this folder, with the address of its remote agent."""
    target = folder / "federation"
    ignore = shutil.ignore_patterns("*.git", "external", "fabric.db*", "__pycache__")
    shutil.copytree(EXAMPLE, target, ignore=ignore)
    make_repository(target / "repositories" / "wise.git")
    registry = json.loads((target / "registry.json").read_text())
    if far is None:
        del registry["agents"]["far"], registry["skillIndex"]["shout"]
    else:
        registry["agents"]["far"]["location"]["url"] = far
    (target / "registry.json").write_text(json.dumps(registry, indent=2))
    return target


def edit_registry(folder: Path, change: Any) -> None:
    path = folder / "registry.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=2))


@asynccontextmanager
async def running_example(folder: Path, **config: Any) -> AsyncIterator[Node]:
    """A node with the configuration of the example; further settings win."""
    settings = {**yaml.safe_load((folder / "fabric.yaml").read_text()), "store": "memory:", **config}
    environ = install_claude(folder.parent / "bin")
    async with running(config=settings, base=folder, from_files=True, environ=environ) as node:
        yield node
