"""`python -m a2a_fabric.demo.serve`: scribe on a free port, until standard input ends (then its node is gone)."""

from __future__ import annotations

import os
import signal
import sys
import threading

from a2a_fabric.demo.scribe import scribe


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    scribe.run(port=0, argv=[])
