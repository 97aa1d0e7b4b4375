"""`a2a-fabric store`"""

from __future__ import annotations

from typing import ClassVar

from a2a_fabric.cli.table import Commands, Row

__all__ = ["GROUP", "run"]


class Stores(Commands):
    table: ClassVar = {
        "status": Row("a2a_fabric.cli.store.status", "Show what is in the store, and whether its schema is current."),
        "migrate": Row("a2a_fabric.cli.store.migrate", "Bring the store's schema up to date."),
        "export": Row("a2a_fabric.cli.store.export", "Write everything in the store as JSON lines."),
        "import": Row("a2a_fabric.cli.store.import_", "Read an export into the store; what is there stays."),
    }


GROUP = Stores


def run() -> None:
    """Look after the store: migrate it, look at it, move it.

    The store keeps jobs, registered agents and messages. These commands open it themselves: no node is needed, and
    one that runs is not disturbed.

    Example: a2a-fabric store status
    """
