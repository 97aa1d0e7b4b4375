"""Agents as folders: the commands `agents lint`, `agents new`, `agents add` and `agents export`."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.agents import AgentId
from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark, report_errors
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import BadInput, ConfigError
from a2a_fabric.core.files import lock_folder, read_text, replace_text, report_write_errors
from a2a_fabric.federation.card import Card, Invocation, build_capabilities, card_from_manifest
from a2a_fabric.federation.folders import decode_card, read_folder
from a2a_fabric.federation.json_file import MAX_REGISTRY_BYTES, JSONFile
from a2a_fabric.federation.lint import LintReport, lint_path, lint_text
from a2a_fabric.federation.locations import CARD_FILE, REGISTRY_FILE, is_url
from a2a_fabric.federation.registry_file import EMPTY_REGISTRY, add_entry, rebuild_index
from a2a_fabric.federation.repositories import RepoAddress, parse_repo
from a2a_fabric.federation.scaffold import AgentType, build_files
from a2a_fabric.federation.settings import GitSettings
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.port import OutboundError

_TIMEOUT = 20.0
RegistryFile = Annotated[
    Path, typer.Option("--registry", metavar="FILE", help="The registry to change; it is made if it does not exist.")
]


def lint_agents(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH|URL", help="Cards, folders or registries. Default: this folder."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for warnings, too.")] = False,
    as_json: Json = False,
) -> None:
    """Check cards, folders and registries: errors, and what is likely a mistake.

    Example: a2a-fabric agents lint examples/federation
    """
    with report_errors(as_json=as_json):
        reports = [_lint(each) for each in paths or ["."]]
    findings = [finding for report in reports for finding in report.findings]
    errors = sum(len(report.errors) for report in reports)
    warnings, agents = len(findings) - errors, sum(report.agents for report in reports)
    is_fine = not errors and not (strict and warnings)
    if as_json:
        print_json({"ok": is_fine, "agents": agents, "errors": errors, "warnings": warnings, "findings": findings})
    else:
        for finding in findings:
            print_line(f"{finding.level}: {finding}")
        counts = ((agents, "agent"), (errors, "error"), (warnings, "warning"))
        remark(", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts))
    if not is_fine:
        raise typer.Exit(1)


def _lint(place: str) -> LintReport:
    """Raises ConfigError if there is nothing to check."""
    if is_url(place):
        return lint_text(_fetch(place))
    if not Path(place).exists():
        raise ConfigError(f"{place}: there is no such file or folder")
    return lint_path(Path(place))


def _fetch(url: str) -> JSONFile:
    """What a URL serves; the operator wrote it, so it may be on this machine. Raises ConfigError."""

    async def fetch() -> bytes:
        client = OutboundClient()
        try:
            reply = await client.request("GET", url, timeout=_TIMEOUT, limit=MAX_REGISTRY_BYTES)
        finally:
            await client.aclose()
        if reply.status != 200:
            raise ConfigError(f"{url}: cannot be read: the server answered {reply.status}")
        return reply.body

    try:
        return JSONFile.parse(url, asyncio.run(fetch()), MAX_REGISTRY_BYTES)
    except OutboundError as exc:
        raise ConfigError(f"{url}: cannot be read: {exc}") from exc


def new_agent(
    name: Annotated[str, typer.Argument(help="The agent's name: lowercase, without spaces.")],
    kind: Annotated[AgentType, typer.Option("--type", help="How the agent is called.")] = "claude",
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Where its folder is made.")] = Path("agents"),
    as_json: Json = False,
) -> None:
    """Make the folder of a new agent, which passes the check and answers.

    Example: a2a-fabric agents new basil --type python
    """
    with report_errors(as_json=as_json):
        folder = into / name
        try:
            files = build_files(name, kind)
        except ValueError as exc:
            raise BadInput(str(exc)) from exc
        if folder.exists():
            raise ConfigError(f"{folder}: there is such a folder already. Choose another name")
        _write_files(folder, files)
    if as_json:
        print_json({"ok": True, "path": str(folder), "files": sorted(files)})
        return
    for path in sorted(files):
        print_line(str(folder / path))
    if kind in ("http", "grpc"):
        remark(f"Start it with: python {folder / 'agent.py'}")
    remark(f"Try it with: a2a-fabric up --agents {into}, or enter it with: a2a-fabric agents add {folder}")


def _write_files(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        with report_write_errors(folder / path):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")


def add_agent(
    place: Annotated[str, typer.Argument(metavar="PATH|GIT|URL", help="A folder, a repository, or a card's URL.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of an agent in a repository.")] = None,
    registry: RegistryFile = Path(REGISTRY_FILE),
    branch: Annotated[str | None, typer.Option("--branch", help="Branch of the repository.")] = None,
    commit: Annotated[str | None, typer.Option("--commit", help="Commit to pin. Default: the newest one now.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Do not pin a commit: run whatever the repository holds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Enter an agent into a registry, and its skills into the index.

    An agent in a repository is pinned to a commit. It is cloned when it is first used.

    Example: a2a-fabric agents add ./agents/basil
    """
    with report_errors(as_json=as_json):
        agent, entry = _build_entry(place, name, registry, branch, commit, trust=trust)
        with lock_folder(registry):
            text = add_entry(str(registry), read_text(registry) or EMPTY_REGISTRY, agent, entry)
            text, index = rebuild_index(str(registry), text, read_skills(registry, text))
            replace_text(registry, text)
    if as_json:
        print_json({"ok": True, "registry": str(registry), "agent": agent, "entry": entry, "skillIndex": index})
        return
    print_line(f"{registry}: added '{agent}' ({entry['location']['type']})")
    if entry["location"]["type"] == "git":
        address = parse_repo(place if not Path(place).exists() else str(Path(place).resolve()))
        schemes = "" if address.scheme in GitSettings().schemes else f", schemes: [{address.scheme}]"
        remark(f"Allow its repository in fabric.yaml: federation: {{git: {{allow: [{address.name}]{schemes}}}}}")
    remark(f"Check it with: a2a-fabric agents lint {registry}. Run it with: a2a-fabric up --agents {registry}")


def _build_entry(
    place: str, name: str | None, registry: Path, branch: str | None, commit: str | None, *, trust: bool
) -> tuple[str, dict[str, Any]]:
    """The name and the entry of an agent. Raises ConfigError, BadInput."""
    path = Path(place)
    if is_url(place) and not place.endswith(".git"):
        card = decode_card(_fetch(place))
        return card.name, {"location": {"type": "remote", "url": place}, **_describe_card(card)}
    if (path / CARD_FILE).is_file():
        card = read_folder(path).card
        relative = Path(os.path.relpath(path.resolve(), registry.resolve().parent)).as_posix()
        folder_location = {"type": "local", "path": relative if relative.startswith("..") else f"./{relative}"}
        return card.name, {"location": folder_location, **_describe_card(card)}
    if path.is_dir() and not (path / "HEAD").is_file():
        raise ConfigError(f"{path}: there is no {CARD_FILE}. Make one with: a2a-fabric agents new")
    if not path.exists() and re.fullmatch(r"[\w-]+", place):  # a repository has at least a host or an owner
        known = Path("agents") / place
        hint = f". Do you mean {known}?" if (known / CARD_FILE).is_file() else ""
        raise BadInput(f"There is no folder '{place}' with a card ({CARD_FILE}){hint}", field="PATH")
    try:
        address = parse_repo(str(path.resolve()) if path.is_dir() else place)
    except ValueError as exc:
        raise BadInput(f"{exc}. Name a folder with a card, a repository, or the URL of a card") from exc
    agent = name or re.sub(r"[^a-z0-9._-]+", "-", address.name.rpartition("/")[2].lower()).strip("-.")
    pin = {"trust": True} if trust else {"commit": commit or _find_newest_commit(address, branch)}
    location = {"type": "git", "repo": place if address.scheme != "file" else address.url, **pin}
    if branch is not None:
        location["branch"] = branch
    return agent, {"location": {**location, "localPath": f"./agents/external/{agent}"}}


def _describe_card(card: Card) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(card)
    return {
        name: fields[name] for name in ("context", "displayName", "role", "description", "signals") if name in fields
    }


def _find_newest_commit(address: RepoAddress, branch: str | None) -> str:
    """Raises ConfigError."""
    environ = {"PATH": os.environ.get("PATH", os.defpath), "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}
    ref = f"refs/heads/{branch}" if branch else "HEAD"
    options = ("-c", "protocol.allow=never", "-c", f"protocol.{address.scheme}.allow=always")
    try:
        done = subprocess.run(  # noqa: S603  # no shell; `--` ends the options
            ["git", *options, "ls-remote", "--", address.url, ref],  # noqa: S607  # of the PATH
            env={**environ, "GIT_CONFIG_GLOBAL": os.devnull},
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        reason = str(getattr(exc, "stderr", "") or exc).strip()
        raise ConfigError(f"{address.name}: the repository cannot be read: {reason}") from exc
    commit = done.stdout.split("\t")[0].strip()
    if not commit:
        raise ConfigError(f"{address.name}: the repository has no {ref}")
    return commit


def read_skills(registry: Path, text: str) -> dict[str, list[str]]:
    """The skills and capabilities of each agent: as the card of a local folder says, else as the registry says."""
    from_registry = JSONFile.parse(str(registry), text.encode(), MAX_REGISTRY_BYTES).value["agents"]
    root = registry.parent.parent if registry.parent.name == "reference" else registry.parent
    skills: dict[str, list[str]] = {}
    for name, entry in from_registry.items():
        skills[name] = [each["id"] for each in entry.get("skills", ())]
        path = entry["location"].get("path")
        if entry["location"]["type"] == "local" and (root / path / CARD_FILE).is_file():
            card = read_folder(root / path).card
            names = (each.name for each in build_capabilities(card.skills, card.capabilities))
            skills[name] = list(dict.fromkeys([*skills[name], *names]))
    return skills


def export_agent(
    agent: AgentId,
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Where its folder is made.")] = Path("agents"),
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Write any agent of a node as a folder, which other nodes call through that node.

    Example: a2a-fabric agents export percy --into agents
    """
    client = connect(url, token)
    view = run_request(client, lambda node: node.describe(agent), as_json=as_json)
    with report_errors(as_json=as_json):
        try:
            card = card_from_manifest(manifest_from_view(view))
        except (ValueError, msgspec.ValidationError) as exc:
            raise BadInput(str(exc)) from exc
        invocation = Invocation(
            type="a2a",
            url=f"{client.url}/agents/{agent}",
            options={"headers": {"Authorization": "env:FABRIC_AUTHORIZATION"}},
        )
        folder = into / card.name
        if folder.exists():
            raise ConfigError(f"{folder}: there is such a folder already")
        text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(card, invocation=invocation)), indent=2)
        readme = f"# {card.display_name or card.name}\n\n{card.description}\n\nThe agent is called at {client.url}.\n"
        _write_files(folder, {CARD_FILE: text.decode() + "\n", "README.md": readme})
    if as_json:
        print_json({"ok": True, "path": str(folder)})
    else:
        print_line(str(folder / CARD_FILE))
        remark('Set FABRIC_AUTHORIZATION="Bearer KEY" where the folder is used; KEY is a key of that node.')


def manifest_from_view(view: dict[str, Any]) -> Manifest:
    """The manifest that a node describes, without its endpoint. Raises ValidationError."""
    capabilities = []
    for each in view["capabilities"]:
        known = {name: value for name, value in each.items() if name in Capability.__struct_fields__}
        schemas = {name: known.get(name) or None for name in ("input_schema", "output_schema")}
        capabilities.append({**known, **schemas})
    names = ("display_name", "description", "version", "role", "signals", "provider", "dependencies", "coordination")
    more = {name: view[name] for name in (*names, "observability", "audience", "tags") if view.get(name)}
    fields = {"agent_id": view["agent_id"], "endpoint": {}, "capabilities": capabilities, **more}
    return msgspec.convert({**fields, "metadata": view.get("metadata", {})}, Manifest)
