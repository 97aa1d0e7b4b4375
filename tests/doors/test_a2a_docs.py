"""What the page about A2A tells people to type works as it stands there."""

from __future__ import annotations

import asyncio

import pytest

from a2a_fabric.demo.percy import percy
from tests.fixtures.node import PSK, running
from tests.fixtures.pages import HERE, commands, needs_curl, typed

EXPECTED = ('"skills"', "6 * 7 = 42", '"sentences":["Cats sleep."]', '"TASK_STATE_COMPLETED"', '"totalSize":3')

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_curl]


async def test_the_commands_do_what_the_page_says() -> None:
    async with running(percy, config={"doors": [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "a2a"}]}) as node:
        for command, expected in zip(commands("a2a.md"), EXPECTED, strict=True):
            printed = await asyncio.to_thread(typed, command.replace(HERE, node.url), TOKEN=PSK)
            assert expected in printed, (command, printed)
