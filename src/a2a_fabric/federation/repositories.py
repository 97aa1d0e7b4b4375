"""The addresses of git repositories, and which of them the operator allows."""

from __future__ import annotations

import fnmatch
import re
from typing import Literal
from urllib.parse import unquote

import msgspec

from a2a_fabric.federation.settings import GitSettings

_SCP_ADDRESS = re.compile(r"(?:[A-Za-z0-9_.-]+@)?([A-Za-z0-9.-]+):(?!//)([^\s]+)")

Scheme = Literal["https", "http", "ssh", "file"]
SCHEMES: dict[str, Scheme] = {"https": "https", "http": "http", "ssh": "ssh", "file": "file"}


class RepoAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A repository. `name` is its host and path, as allow-lists and messages show it."""

    url: str
    scheme: Scheme
    name: str


def parse_repo(repo: str) -> RepoAddress:
    """Raises ValueError for an address that is not one, or that holds credentials or options."""
    # Git and servers decode addresses; a name with `..` in it would be that of another repository.
    if repo.startswith("-") or not repo.isprintable() or " " in repo or ".." in unquote(repo).split("/"):
        raise ValueError(f"'{repo[:100]}' is not the address of a repository")
    if repo.startswith("/"):
        return RepoAddress(url=f"file://{repo}", scheme="file", name=repo.removesuffix(".git"))
    scheme, separator, rest = repo.partition("://")
    if separator:
        if scheme not in SCHEMES:
            raise ValueError(f"a repository cannot be reached by '{scheme[:20]}'")
        if scheme == "file":
            return RepoAddress(url=repo, scheme="file", name=rest.removesuffix(".git"))
        authority, _, path = rest.partition("/")
        user, at, host = authority.rpartition("@")
        if unquote(user).startswith("-"):  # git decodes it, and ssh would take it for an option
            raise ValueError(f"'{repo[:100]}' is not the address of a repository")
        if at and (scheme != "ssh" or ":" in user):
            raise ValueError("the address of a repository must not hold a user or password; use the environment")
        return _make_address(SCHEMES[scheme], repo, host, path)
    if (match := _SCP_ADDRESS.fullmatch(repo)) is not None:
        return _make_address("ssh", repo, match[1], match[2])
    host, _, path = repo.partition("/")
    return _make_address("https", f"https://{repo}", host, path)


def _make_address(scheme: Scheme, url: str, host: str, path: str) -> RepoAddress:
    bare = path.strip("/").removesuffix(".git")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?", host) or not bare or ".." in unquote(bare).split("/"):
        raise ValueError(f"'{url[:100]}' is not the address of a repository, such as github.com/user/agent")
    return RepoAddress(url=url, scheme=scheme, name=f"{host.lower()}/{bare}")


def check_allowed(address: RepoAddress, settings: GitSettings) -> None:
    """Raises ValueError, which says what the operator can do."""
    if address.scheme not in settings.schemes:
        raise ValueError(
            f"repositories may not be reached by {address.scheme}: add it to `federation.git.schemes` to allow that"
        )
    is_allowed = any(
        address.name == each or address.name.startswith(f"{each.rstrip('/')}/") or fnmatch.fnmatch(address.name, each)
        for each in settings.allow
    )
    if not is_allowed:
        raise ValueError(
            f"the repository '{address.name}' is not allowed: add it, its owner or its host to `federation.git.allow`"
        )
