"""Modules imported when they are needed, one at a time.

Doors import in threads, runtimes on first use. Two threads that enter the same package
at different ends would meet in the middle, where Python shows one of them half a module.
"""

from __future__ import annotations

import importlib
import threading
from types import ModuleType

_turn = threading.RLock()
_whole: dict[str, ModuleType] = {}  # no need to take turns for these


def load(name: str) -> ModuleType:
    """Raises ImportError."""
    known = _whole.get(name)
    if known is not None:
        return known
    with _turn:
        module = _whole[name] = importlib.import_module(name)
        return module
