"""Commands by name: listed from a table alone, and imported when they are asked for, so that the quick ones stay quick.

A row names a module. Its `run` is the command, and the docstring of `run` its help. A module that has a `GROUP`
holds commands of its own, in a table of the same kind.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Row(NamedTuple):
    module: str
    about: str


class Commands(TyperGroup):
    """`table` is each group's own; `default` is run when no command is named."""

    table: ClassVar[dict[str, Row]] = {}
    default: ClassVar[str | None] = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=row.about) for name, row in self.table.items()}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and (not args[0].startswith("-") or args[0] in CONTEXT["help_option_names"])  # type: ignore[operator]  # a list
        if self.default is not None and not is_named and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name, self.table[name]) if name in self.table else command, rest


def load(name: str, row: Row) -> Any:
    """The command itself."""
    module = import_module(row.module)
    group: type[Commands] | None = getattr(module, "GROUP", None)
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings=CONTEXT, no_args_is_help=group is not None
    )
    if group is None:
        app.command(name)(module.run)
    else:
        app.callback(cls=group)(module.run)
    return get_command(app)
