"""The command `a2a-fabric`: commands are listed in program.py, and their modules imported when they are used."""

from a2a_fabric.cli.program import main

__all__ = ["main"]
