"""Agents beside other code: in a thread, in a running loop, inside FastAPI; and agents that ask back."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from a2a_fabric import Agent, FabricClient
from tests.fixtures.environments import NotInstalled, python_of
from tests.fixtures.node import PSK, WAIT_TIMEOUT, running

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "writing-an-agent.md").read_text(), re.DOTALL)


def block_with(words: str) -> str:
    return str(next(block for block in BLOCKS if words in block))


def hello() -> Agent:
    agent = Agent("hello")

    @agent.capability
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    return agent


async def greet(url: str) -> Any:
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json={"name": "greet", "arguments": {"name": "Ada"}}) as reply,
    ):
        return (await reply.json())["result"]


async def test_a_started_agent_answers_at_once_until_it_is_stopped() -> None:
    with hello().start(port=0) as running_agent:
        assert await greet(running_agent.url) == {"answer": "Hello, Ada!"}
        with pytest.raises(OSError, match="Choose another port"):
            hello().start(port=int(running_agent.url.rpartition(":")[2]))
    running_agent.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await greet(running_agent.url)


async def test_an_agent_is_served_in_the_running_loop_until_it_is_cancelled() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serving = asyncio.ensure_future(hello().serve(port=port))
    url = f"http://127.0.0.1:{port}"
    ends_at = time.monotonic() + WAIT_TIMEOUT
    while True:
        try:
            assert await greet(url) == {"answer": "Hello, Ada!"}
            break
        except aiohttp.ClientConnectionError:
            assert time.monotonic() < ends_at
            await asyncio.sleep(0.02)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(aiohttp.ClientConnectionError):
        await greet(url)


def test_the_notebook_of_the_page_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", block_with("agent.start(port=0)")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("http://127.0.0.1:")


async def test_an_agent_inside_fastapi_answers_below_its_path(tmp_path: Path) -> None:
    try:
        interpreter = await asyncio.to_thread(python_of, "fastapi")
    except NotInstalled as exc:
        pytest.skip(str(exc))
    (tmp_path / "my_module.py").write_text(block_with("FastAPI()"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path}"}
    command = [interpreter, "-m", "uvicorn", "my_module:app", "--port", str(port), "--log-level", "warning"]
    process = await asyncio.create_subprocess_exec(*command, env=environ, cwd=tmp_path)
    url = f"http://127.0.0.1:{port}/agents/hello"
    try:
        ends_at = time.monotonic() + WAIT_TIMEOUT
        while True:
            try:
                assert await greet(url) == {"answer": "Hello, Ada!"}
                break
            except aiohttp.ClientConnectionError:
                assert time.monotonic() < ends_at
                assert process.returncode is None
                await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as http, http.get(url) as reply:
            manifest = await reply.json()
        assert manifest["endpoint"]["uri"].rstrip("/") == url
        assert [each["name"] for each in manifest["capabilities"]] == ["greet"]
    finally:
        process.terminate()
        await process.wait()


async def test_the_agent_of_the_page_asks_back() -> None:
    module: dict[str, Any] = {}
    exec(block_with("make_input_required("), module)  # noqa: S102  # the page's own code
    async with running(module["agent"]) as node, FabricClient(node.url, PSK) as fabric:
        job = await fabric.submit("cleaner", "remove", context={"name": "old.txt"})
        asked = await job.result(WAIT_TIMEOUT)
        questions = asked.data["input_required"]["questions"]
        assert questions["confirm"]["message"] == "Remove old.txt?"
        await job.answer({"confirm": {"content": {"sure": True}}})
        assert (await job.result(WAIT_TIMEOUT)).answer == "old.txt was removed."
