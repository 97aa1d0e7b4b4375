"""Modules imported when they are needed, one at a time.

Doors import in threads, runtimes on first use. Two threads that enter the same package
at different ends would meet in the middle, where Python shows one of them half a module.
"""

from __future__ import annotations

import importlib
import threading
from types import ModuleType

_turn = threading.RLock()


def load(name: str) -> ModuleType:
    """Raises ImportError."""
    with _turn:
        return importlib.import_module(name)
