"""How far a long reading or writing has come: one line on stderr that counts, if that is a terminal."""

from __future__ import annotations

import sys
import time
from typing import IO

_EVERY = 0.1
_CLEAR = "\r\x1b[2K"


class Tally:
    def __init__(self, what: str, err: IO[str] | None = None) -> None:
        self._what = what
        self._err = err or sys.stderr
        self._draws = self._err.isatty()
        self._drawn_at = 0.0
        self.count = 0
        self.bytes = 0

    def add(self, size: int) -> None:
        self.count += 1
        self.bytes += size
        if self._draws and time.monotonic() - self._drawn_at >= _EVERY:
            self._drawn_at = time.monotonic()
            self._err.write(f"{_CLEAR}{self._what} {self.count:,} lines, {self.bytes / 1e6:.1f} MB")
            self._err.flush()

    def close(self) -> None:
        """Leave nothing half drawn behind."""
        if self._drawn_at:
            self._drawn_at = 0.0
            self._err.write(_CLEAR)
            self._err.flush()
