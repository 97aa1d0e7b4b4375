"""`a2a-fabric init`: the files of a new node, with a unit for systemd or a compose file on request.

Three questions at most, each with a default; without a terminal or with --yes, the defaults are taken. Either all
files are written or none: a file that exists is never changed."""

from __future__ import annotations

import getpass
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import msgspec
import typer

from a2a_fabric.cli.options import Json
from a2a_fabric.cli.output import print_json, print_line, remark, report_errors
from a2a_fabric.client.local_node import StateFolder
from a2a_fabric.config import DEFAULT_LISTEN, parse_listen, read_environment
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.files import replace_text, report_write_errors
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.plugins import load_store
from a2a_fabric.stores.address import kind_from_address, resolve_address
from a2a_fabric.version import __version__

Extra = Literal["none", "unit", "compose"]
_SECRET_MODE = 0o600
_ALWAYS_WRITTEN = ("fabric.yaml", "agents.yaml", ".env")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9:/._%+@-]+")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9:/._-]*[A-Za-z0-9/._-]")


class NewNode(msgspec.Struct, frozen=True, kw_only=True):
    """What the user chose."""

    folder: Path
    listen: str
    store: str
    extra: Extra


def run(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where; it is made if needed.")] = Path(),
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="127.0.0.1 for this machine, 0.0.0.0 for others, too.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="sqlite:PATH, postgresql://… or nats://…; kept in .env.")
    ] = None,
    extra: Annotated[
        Extra | None, typer.Option("--with", help="Also write a unit for systemd, or a compose file.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take the defaults.")] = False,
    as_json: Json = False,
) -> None:
    """Write the files of a new node, and on request a unit or compose file.

    Files that exist are never changed.

    Example: a2a-fabric init my-node --yes
    """
    with report_errors(as_json=as_json):
        _refuse_existing(folder, _ALWAYS_WRITTEN)  # before the user answers questions in vain
        may_ask = not yes and not as_json and sys.stdin.isatty()
        node = _choose(folder, listen, store, extra, may_ask=may_ask)
        written = write_files(node, _render_files(node))
    if as_json:
        print_json({"folder": str(node.folder.resolve()), "files": [str(path) for path in written]})
        return
    for path in written:
        print_line(f"wrote {path}")
    remark(_describe_next_steps(node))


def _choose(folder: Path, listen: str | None, store: str | None, extra: Extra | None, *, may_ask: bool) -> NewNode:
    """Raises ConfigError."""
    if listen is None:
        is_shared = may_ask and extra != "compose" and typer.confirm("Shall other machines reach this node?", err=True)
        port = parse_listen(DEFAULT_LISTEN)[1]
        listen = f"0.0.0.0:{port}" if is_shared else DEFAULT_LISTEN  # the user said so
    if store is None and extra != "compose":
        store = "sqlite:fabric.db"
        if may_ask:
            question = "Where are jobs stored? sqlite:PATH, postgresql://… or nats://…"
            store = typer.prompt(question, default=store, value_proc=_parse_store, err=True)
    if extra is None:
        extra = "none"
        if may_ask and shutil.which("systemctl") and typer.confirm("Write a unit for systemd?", err=True):
            extra = "unit"
    parse_listen(listen)
    if store:
        _check_store(store)
    return NewNode(folder=folder, listen=listen, store=store or "", extra=extra)


def _parse_store(text: str) -> str:
    """For a question that is asked again."""
    try:
        _check_store(text)
    except ConfigError as error:
        raise typer.BadParameter(error.message) from error
    return text


def _check_store(address: str) -> None:
    """Raises ConfigError for an address with which the node would not start, or that breaks the file."""
    if not address.isprintable():
        raise ConfigError("store: the address holds a character that cannot be printed")
    kind = kind_from_address(address)
    load_store(kind)
    resolve_address(address, Path())


def _render_files(node: NewNode) -> dict[str, tuple[str, int]]:
    """The text and the permissions of each file, by name."""
    is_server = "://" in node.store
    database_password = secrets.token_urlsafe(24)
    saved_key = StateFolder(read_environment()).key
    key = saved_key.read() or saved_key.create()  # the one that the commands of this user send to its own nodes
    is_compose = node.extra == "compose"
    port = parse_listen(node.listen)[1]
    values = {
        "listen": f"0.0.0.0:{port}" if is_compose else node.listen,
        "store": "env:FABRIC_STORE" if is_server or is_compose else _quote(node.store),
        "version": __version__,
        "port": str(port),
        "folder": str(node.folder.resolve()).replace("%", "%%"),
        "quoted_folder": _quote_for_unit(str(node.folder.resolve())),
        "program": " ".join(_quote_for_unit(word).replace("$", "$$") for word in _find_program()),
        "user": _find_user(),
    }
    secret_lines = [f"FABRIC_PSK={key}"]
    if is_compose:
        secret_lines += [
            f"POSTGRES_PASSWORD={database_password}",
            f"FABRIC_STORE=postgresql://fabric:{database_password}@postgres/fabric",
        ]
    elif is_server:
        secret_lines.append(f"FABRIC_STORE={node.store}")
    rendered = {
        "fabric.yaml": (_render("fabric.yaml", values), 0o644),
        "agents.yaml": (_render("agents.yaml", values), 0o644),
        ".env": ("\n".join([*_ENV_HEAD, *secret_lines, ""]), _SECRET_MODE),
        ".gitignore": (".env\nfabric.db*\n", 0o644),
    }
    if node.extra == "unit":
        rendered["a2a-fabric.service"] = _render("a2a-fabric.service", values), 0o644
    if is_compose:
        rendered["compose.yaml"] = _render("compose.yaml", values), 0o644
    return rendered


_ENV_HEAD = ("# Secrets of this node. Keep this file to yourself: it is not for a repository.",)


def _quote(text: str) -> str:
    """As YAML, without quotes where none are needed."""
    return text if _PLAIN.fullmatch(text) else msgspec.json.encode(text).decode()


def _render(name: str, values: dict[str, str]) -> str:
    text = files("a2a_fabric.cli").joinpath("templates", name).read_text("utf-8")
    return Template(text).substitute(values)


def _find_user() -> str:
    """The service does not run as root: then it is a user that the administrator makes for it."""
    name = getpass.getuser()
    return "a2a-fabric" if name == "root" else name


def _find_program() -> list[str]:
    program = Path(sys.argv[0])
    return [str(program.absolute())] if program.name == "a2a-fabric" else [sys.executable, "-m", "a2a_fabric"]


def _quote_for_unit(word: str) -> str:
    """As one word of a unit for systemd."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if _PLAIN_WORD.fullmatch(escaped) else f'"{escaped}"'


def _refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Raises ConfigError."""
    existing = [name for name in names if (folder / name).exists()]
    if existing:
        raise ConfigError(
            f"{folder}: there is already {', '.join(existing)}. Nothing was changed; choose another folder, or "
            "remove what is there"
        )


def write_files(node: NewNode, texts: dict[str, tuple[str, int]]) -> list[Path]:
    """Raises ConfigError, and then nothing was written."""
    _refuse_existing(node.folder, [name for name in texts if name != ".gitignore"])
    with report_write_errors(node.folder):
        node.folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for name, (text, mode) in texts.items():
            path = node.folder / name
            if not path.exists():
                replace_text(path, text, mode=mode)
                written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return written


def _describe_next_steps(node: NewNode) -> str:
    place = "" if node.folder == Path() else f"cd {shlex.quote(str(node.folder))} && "
    if node.extra == "compose":
        return f"Start it with: {place}docker compose up --detach"
    steps = f"Start it with: {place}a2a-fabric up --detach"
    if node.extra == "unit":
        steps += "\nOr as a service: sudo systemctl link --now a2a-fabric.service, after a look into the file"
    if not is_loopback(parse_listen(node.listen)[0]):
        steps += "\nOther machines can reach it: set `tls` in fabric.yaml, or put a proxy with a certificate before it"
    return steps
