"""Whether the file that we write to is still the one at its place.

Removed, or replaced by a copy, it would take further writes all the same, and
nobody would ever see them again.
"""

from __future__ import annotations

import os
from pathlib import Path

from a2a_fabric.core.store_errors import StoreUnusable


class Presence:
    """Made when the file has just been opened."""

    def __init__(self, path: Path, place: str) -> None:
        self._path = path
        self._place = place
        self._file = self._found()

    def check(self) -> None:
        """Raises StoreUnusable."""
        if self._found() != self._file:
            raise StoreUnusable(
                f"{self._place} was removed or replaced while it is in use, so nothing more is written to it: "
                "put the file back, or restart the node to begin with what is there now",
                store=self._place,
            )

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino
