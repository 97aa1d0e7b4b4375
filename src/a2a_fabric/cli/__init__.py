"""The command `a2a-fabric`: one module per command, imported when the command is used."""

from a2a_fabric.cli.program import main

__all__ = ["main"]
