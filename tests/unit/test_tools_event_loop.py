"""No call to a tool keeps the interpreter for itself: others get their turn within a moment.

Measured in a process of its own and in its processor time, so that a busy machine makes no difference.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_MOMENT = 0.08  # seconds of the processor's time
_MEASURE = """
import asyncio, json, random, sys, threading, time
from pathlib import Path
import msgspec
from a2a_fabric.tools.catalog import TOOLS_BY_ID
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.tools.spec import Toolbox

RANDOM = random.Random(1)

def watch(stop, waited):
    while not stop.is_set():
        before = time.process_time()
        time.sleep(0.0005)
        waited.append(time.process_time() - before)

async def main():
    tool = TOOLS_BY_ID[sys.argv[1]]
    given = msgspec.convert(eval(sys.argv[2]), tool.arguments)
    stop, waited = threading.Event(), []
    watching = threading.Thread(target=watch, args=(stop, waited))
    watching.start()
    loop_waited, ended = [], asyncio.Event()
    async def ticking():
        while not ended.is_set():
            before = time.process_time()
            await asyncio.sleep(0.0005)
            loop_waited.append(time.process_time() - before)
    ticks = asyncio.ensure_future(ticking())
    await asyncio.sleep(0.01)
    try:
        await tool.handler(given, Toolbox(ToolSettings(), Path("."), None, {}))
        error = None
    except Exception as exc:
        error = str(exc)
    await asyncio.sleep(0.001)
    ended.set()
    await ticks
    stop.set()
    watching.join()
    print(json.dumps({"waited": max(waited), "loop": max(loop_waited), "error": error}))

asyncio.run(main())
"""

COSTLY = {
    "mixed numbers": (
        "math.statistics",
        "{'data': [RANDOM.choice([RANDOM.random() * 1e300, RANDOM.randrange(10**300)]) for _ in range(100_000)]}",
    ),
    "changes": (
        "text.transform",
        "{'text': 'é' * 10**6, 'operations': [{'type': 'uppercase'}, {'type': 'lowercase'}] * 50}",
    ),
    "percents": ("encode.url", "{'text': 'é' * 10**6}"),
    "arrays": ("data.json", "{'json': '[' + '[],' * 600_000 + '1]'}"),
    "fields": ("data.csv", "{'csv': ',' * 10**6, 'headers': False}"),
    "lines": ("text.diff", r"{'original': 'a\n' * 500_000, 'modified': 'b\n' * 500_000}"),
}


@pytest.mark.parametrize(("tool", "given"), COSTLY.values(), ids=COSTLY)
def test_others_get_their_turn_while_a_tool_works(tool: str, given: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, tool, given], capture_output=True, timeout=120, check=True, text=True
    )
    found = json.loads(done.stdout)
    assert found["waited"] < _MOMENT, found
    assert found["loop"] < _MOMENT, found
