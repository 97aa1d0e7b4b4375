"""Imports modules on first use, one at a time.

Doors import in threads, runtimes on first use. Without the lock, two threads that import the
same package from different ends could see a partly initialized module."""

from __future__ import annotations

import importlib
import threading
from types import ModuleType

_import_lock = threading.RLock()
_loaded_modules: dict[str, ModuleType] = {}  # these need no lock


def load_module(name: str) -> ModuleType:
    """Raises ImportError."""
    loaded = _loaded_modules.get(name)
    if loaded is not None:
        return loaded
    with _import_lock:
        module = _loaded_modules[name] = importlib.import_module(name)
        return module
