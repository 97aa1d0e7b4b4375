"""`python -m a2a_fabric.demo.serve`: the agents that listen, until standard input ends (then their node is gone).

The first line on stderr is where they are: a JSON object of addresses by name.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from contextlib import AsyncExitStack
from importlib.util import find_spec

import uvicorn

from a2a_fabric.core.modules import load
from a2a_fabric.demo.house import House

HERE = "a2a_fabric.demo"
HTTP = ("scribe", "units", "almanac", "morse", "roman", "palette", "lab")
GRPC = "primes"
GRACE = 5  # seconds that running calls have left after SIGTERM


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    house = House({name: f"{HERE}.{name}" for name in HTTP}, url)
    config = uvicorn.Config(
        house, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(listener)
        stack.push_async_callback(house.aclose)
        places = {name: f"{url}/{name}" for name in HTTP}
        if find_spec("grpc") is not None:
            places[GRPC] = await stack.enter_async_context(load(f"{HERE}.{GRPC}").serving())
        sys.stderr.write(json.dumps(places) + "\n")
        sys.stderr.flush()
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn raises it once more when it has shut down
    asyncio.run(main())
