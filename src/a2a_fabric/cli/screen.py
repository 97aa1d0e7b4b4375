"""A call as it happens: tokens on stdout, and on a terminal one line of progress on stderr.

The line of progress is never drawn while stdout, on the same terminal, is in the middle of a line.
"""

from __future__ import annotations

import shutil
import sys
from typing import IO

from a2a_fabric.client.values import StreamEvent

_BAR = 24
_CLEAR = "\r\x1b[2K"


class Screen:
    def __init__(self, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._draws = self._err.isatty()
        self._shares = self._draws and self._out.isatty()
        self._is_drawn = False
        self._is_at_line_start = True
        self._words: list[str] = []

    @property
    def words(self) -> str:
        """All tokens so far."""
        return "".join(self._words)

    def show(self, event: StreamEvent) -> None:
        if event.kind == "token":
            self._say(event.text)
        elif event.kind == "progress":
            self._draw(_bar(float(event.data.get("percent", 0)), str(event.data.get("message") or "")))
        elif event.kind == "tool_call":
            self._draw(f"uses {event.data.get('tool', 'a tool')}")
        elif event.kind == "status":
            if event.data.get("reset"):  # the agent begins anew
                self.end()
                self._words.clear()
            self._draw(str(event.data.get("message") or event.data.get("status") or ""))

    def remark(self, text: str) -> None:
        """A line on stderr that stays, between what is shown; on a shared terminal never inside a line of stdout."""
        self._clear()
        if self._shares:
            self.end()
        self._err.write(f"{text}\n")
        self._err.flush()

    def end(self) -> None:
        """Leave the terminal as a person expects it: nothing half drawn, the cursor on a new line."""
        self._clear()
        if not self._is_at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._is_at_line_start = True

    def _say(self, text: str) -> None:
        if self._shares:
            self._clear()
        self._words.append(text)
        self._is_at_line_start = text.endswith("\n") if text else self._is_at_line_start
        self._out.write(text)
        self._out.flush()

    def _draw(self, text: str) -> None:
        if not self._draws or not text or (self._shares and not self._is_at_line_start):
            return
        width = shutil.get_terminal_size().columns - 1
        self._err.write(_CLEAR + " ".join(text.split())[:width])
        self._err.flush()
        self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            self._err.write(_CLEAR)
            self._err.flush()
            self._is_drawn = False


def _bar(percent: float, message: str) -> str:
    full = round(_BAR * min(100.0, max(0.0, percent)) / 100)
    return f"{'━' * full}{'╌' * (_BAR - full)} {percent:3.0f} %  {message}"
