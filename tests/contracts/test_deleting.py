"""A door or a runtime is a folder and a row: without them the product starts and answers through the others."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from a2a_fabric import plugins

SOURCE = Path(__file__).parents[2] / "src" / "a2a_fabric"
DOORS, RUNTIMES = plugins.list_builtin_kinds("doors"), plugins.list_builtin_kinds("runtimes")

# Every door and runtime that is left is loaded; then an agent is called through one of the doors.
PROGRAM = """
import asyncio, sys
from a2a_fabric import Agent, Fabric, plugins
from a2a_fabric.config import Config
from a2a_fabric.testing.door_contract import KEY, InProcessClient

agent = Agent("echo")

@agent.capability
async def echo(task: str) -> dict[str, str]:
    return {"answer": f"echo {task}"}

REQUESTS = {
    "fabric": ("/mcp/call", {"name": "fabric.call", "arguments": ARGUMENTS}),
    "directory": ("/a2a/agents/echo/rpc", {"jsonrpc": "2.0", "id": 1, "method": "a2a/task", "params": TASK}),
}

async def main() -> None:
    kinds = plugins.list_builtin_kinds("doors")
    for kind in plugins.list_builtin_kinds("runtimes"):
        plugins.load_runtime(kind)
    config = Config(store="memory:")
    async with Fabric(config, sources=(), agents=(agent,), psk=KEY) as node:
        assert len(node.doors) == len(kinds)
        if "python" not in plugins.list_builtin_kinds("runtimes"):
            reply = await InProcessClient(node.app).request("GET", "/health")
            assert reply.status == 200, reply
        else:
            path, body = REQUESTS["fabric" if "fabric" in kinds else "directory"]
            reply = await InProcessClient(node.app).request("POST", path, KEY, body)
            assert "echo hello" in reply.text, reply
    print("answered", *sorted(kinds))

asyncio.run(main())
""".replace("ARGUMENTS", '{"agent_id": "echo", "capability": "echo", "task": "hello"}').replace(
    "TASK", '{"taskId": "t1", "action": "echo", "sender": "test", "input": {"task": "hello"}}'
)


def delete(group: str, kind: str, package: Path) -> None:
    """The row, and the folder or file that it names."""
    table = package / "plugins.py"
    text = table.read_text("utf-8")
    match = re.search(rf'^ +"{kind}": "a2a_fabric\.{group}\.(\w+)[\w.]*:plugin",\n', text, re.MULTILINE)
    assert match is not None
    table.write_text(text.replace(match[0], "", 1), "utf-8")
    place = package / group / match[1]
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.with_suffix(".py").unlink()


@pytest.mark.parametrize(
    ("group", "kind"), [*(("doors", kind) for kind in DOORS), *(("runtimes", kind) for kind in RUNTIMES)]
)
def test_without_it_the_product_starts_and_answers_through_the_others(group: str, kind: str, tmp_path: Path) -> None:
    package = tmp_path / "a2a_fabric"
    shutil.copytree(SOURCE, package)  # with what is compiled already
    delete(group, kind, package)
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    left = set(DOORS) - ({kind} if group == "doors" else set())
    assert finished.stdout.split() == ["answered", *sorted(left)]
