"""The command line, `a2a-fabric`: program.py lists the commands, whose modules are imported when they are used."""

from a2a_fabric.cli.program import main

__all__ = ["main"]
