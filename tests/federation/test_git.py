"""Agents in git repositories: what may be cloned, and what a hostile repository can do, which is nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.federation.git import GitCheckout, find_checkout, git_manifest
from a2a_fabric.federation.registry_file import GitLocation
from a2a_fabric.federation.repositories import check_allowed, parse_repo
from a2a_fabric.federation.settings import GitSettings
from tests.federation.sample import copy_example, edit_registry, make_repository, running_example
from tests.fixtures.disk import needs_root, small_disk
from tests.fixtures.node import WAIT_TIMEOUT
from tests.marks import requirement

ALLOW_FILES = GitSettings(allow=("*",), schemes=("file",))


class Repository:
    """A bare repository whose trees are written object by object, so that they can hold what git itself refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_repository(path)

    def git(self, *arguments: str, content: bytes | None = None) -> str:
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{role}_{key}": "x@example.com" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")},
        }
        command = ["git", "--git-dir", str(self.path), *arguments]
        return (
            subprocess.run(command, env=environ, input=content, check=True, capture_output=True).stdout.decode().strip()
        )

    def commit(self, *entries: tuple[str, str, bytes]) -> str:
        """A new commit on main: the files of the agent, and these entries (mode, name, content)."""
        lines = self.git("ls-tree", "main").splitlines()
        for mode, name, content in entries:
            kind = "commit" if mode == "160000" else "blob"
            digest = content.decode() if kind == "commit" else self.git("hash-object", "-w", "--stdin", content=content)
            lines = [line for line in lines if not line.endswith(f"\t{name}")]
            lines.append(f"{mode} {kind} {digest}\t{name}")
        tree = self.git("mktree", "--missing", content="\n".join(lines).encode() + b"\n")
        commit = self.git("commit-tree", tree, "-p", "main", "-m", "more")
        self.git("update-ref", "refs/heads/main", commit)
        return commit


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "wise.git")


@pytest.fixture
def locate(tmp_path: Path, repository: Repository) -> Callable[..., GitCheckout]:
    def locate(settings: GitSettings = ALLOW_FILES, **more: Any) -> GitCheckout:
        location = GitLocation(repo=str(repository.path), **{"trust": True, "pull": "always", **more})
        return find_checkout(git_manifest("wise", location, tmp_path, "registry.json", settings))

    return locate


def list_files(tmp_path: Path) -> set[str]:
    folder = tmp_path / "agents" / "external" / "wise"
    return {each.name for each in folder.iterdir()} if folder.exists() else set()


async def expect_refusal(checkout: GitCheckout, words: str) -> None:
    with pytest.raises(AgentOffline) as refused:
        await checkout.update()
    assert words in refused.value.full_message
    assert checkout.find_version() is None


@pytest.mark.parametrize(
    ("repo", "name"),
    [
        ("github.com/user/agent", "github.com/user/agent"),
        ("https://GitHub.com/user/agent.git", "github.com/user/agent"),
        ("ssh://git@github.com/user/agent", "github.com/user/agent"),
        ("git@github.com:user/agent.git", "github.com/user/agent"),
        ("/srv/repos/agent.git", "/srv/repos/agent"),
    ],
)
def test_a_repository_has_one_name_however_it_is_written(repo: str, name: str) -> None:
    assert parse_repo(repo).name == name


@pytest.mark.parametrize(
    "repo",
    [
        "--upload-pack=touch /tmp/x",
        "https://user:secret@github.com/user/agent",
        "ext::sh -c id",
        "gopher://x/y",
        "github.com",
        "github.com/../x",
        "https://github.com/a b",
        "https://-x/a",
        "ssh://-oProxyCommand=id@github.com/user/agent",
        "ssh://%2DoProxyCommand=id@github.com/user/agent",
        "https://github.com/user/%2e%2E/evil/agent",
        "ssh://git@github.com/user%2f../evil/agent",
        "git@github.com:../evil",
        "git@github.com:user/../evil",
        "file:///srv/repos/../evil",
        "/srv/repos/../evil",
    ],
)
def test_an_address_with_options_credentials_or_other_protocols_is_refused(repo: str) -> None:
    with pytest.raises(ValueError, match="repository"):
        parse_repo(repo)


def test_only_allowed_hosts_repositories_and_schemes_are_used() -> None:
    settings = GitSettings(allow=("github.com/user", "example.com/team/*"))
    check_allowed(parse_repo("github.com/user/agent"), settings)
    check_allowed(parse_repo("example.com/team/agent"), settings)
    for repo in ("github.com/username/agent", "github.com.evil.example/user/agent", "example.com/other/agent"):
        with pytest.raises(ValueError, match=r"federation\.git\.allow"):
            check_allowed(parse_repo(repo), settings)
    for repo in ("/srv/x", "git@github.com:user/agent", "http://github.com/user/agent"):
        with pytest.raises(ValueError, match=r"federation\.git\.schemes"):
            check_allowed(parse_repo(repo), settings)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"trust": False}, "not pinned"),
        ({"local_path": "../wise"}, "localPath"),
        ({"local_path": "agents/wise"}, "localPath"),
        ({"local_path": "/srv/wise"}, "localPath"),
        ({"path": "../.."}, "path"),
        ({"branch": "main", "tag": "v1"}, "not both"),
    ],
)
def test_a_location_that_is_not_allowed_says_why(locate: Callable[..., GitCheckout], more: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        locate(**more)


async def test_a_branch_a_tag_and_a_pinned_commit_are_checked_out(
    locate: Callable[..., GitCheckout], repository: Repository
) -> None:
    first = repository.git("rev-parse", "main")
    repository.git("tag", "v1", first)
    second = repository.commit(("100755", "run.sh", b"#!/bin/sh\n"))
    for more, commit in (
        ({}, second),
        ({"branch": "main"}, second),
        ({"tag": "v1"}, first),
        ({"commit": first}, first),
    ):
        checkout = locate(**more)
        await checkout.update()
        version = checkout.find_version()
        assert version is not None
        assert version[1] == commit
    assert os.access(checkout.link.parent / ".wise" / second / "run.sh", os.X_OK)


async def test_a_branch_that_moves_or_rewrites_its_history_is_followed_and_a_pinned_commit_stays(
    locate: Callable[..., GitCheckout], repository: Repository, tmp_path: Path
) -> None:
    first = repository.git("rev-parse", "main")
    moving, pinned = locate(branch="main"), locate(commit=first, local_path="agents/external/pinned")
    await moving.update()
    await pinned.update()
    orphan = repository.git("commit-tree", f"{first}^{{tree}}", "-m", "rewritten")
    repository.git("update-ref", "refs/heads/main", orphan)
    assert not pinned.needs_update()
    await moving.update()
    assert moving.find_version() == ((tmp_path / "agents/external/.wise" / orphan).resolve(), orphan)
    assert pinned.find_version() == ((tmp_path / "agents/external/.pinned" / first).resolve(), first)


async def test_a_clone_is_updated_as_its_pull_policy_says(locate: Callable[..., GitCheckout], tmp_path: Path) -> None:
    await locate(branch="main").update()
    never, daily, always = (locate(branch="main", pull=policy) for policy in ("never", "daily", "always"))
    assert [each.needs_update() for each in (never, daily, always)] == [False, False, True]
    a_day_ago = time.time() - 90_000
    os.utime(tmp_path / "agents/external/.wise/fetched", (a_day_ago, a_day_ago))
    assert [each.needs_update() for each in (never, daily, always)] == [False, True, True]


async def test_hooks_submodules_filters_and_attributes_of_a_repository_do_nothing(
    locate: Callable[..., GitCheckout], repository: Repository, tmp_path: Path
) -> None:
    (repository.path / "hooks").mkdir(exist_ok=True)
    for name in ("post-checkout", "post-merge", "pre-commit"):
        hook = repository.path / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
    repository.commit(
        ("160000", "module", b"0" * 39 + b"1"),
        ("100644", ".gitmodules", b'[submodule "module"]\n path = module\n url = https://example.com/x\n'),
        ("100644", ".gitattributes", b"* filter=lfs text eol=crlf ident\n"),
        ("100644", "plain.txt", b"$Id$\n"),
    )
    await locate().update()
    assert (tmp_path / "agents/external/wise/plain.txt").read_bytes() == b"$Id$\n"
    assert "module" not in list_files(tmp_path)
    assert not (tmp_path / "agents/external/wise/.git").exists()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("target", [b"/etc/passwd", b"../../../secret", b"a/../../x"])
async def test_a_symbolic_link_out_of_the_tree_is_refused(
    locate: Callable[..., GitCheckout], repository: Repository, target: bytes
) -> None:
    repository.commit(("120000", "link", target))
    await expect_refusal(locate(), "leads out of the repository")


async def test_a_symbolic_link_inside_the_tree_stays(
    locate: Callable[..., GitCheckout], repository: Repository, tmp_path: Path
) -> None:
    repository.commit(("120000", "AGENTS.md", b"README.md"))
    await locate().update()
    assert (tmp_path / "agents/external/wise/AGENTS.md").read_text().startswith("# Wise")


async def test_links_that_lead_out_through_one_another_are_refused(
    locate: Callable[..., GitCheckout], repository: Repository
) -> None:
    repository.commit(("120000", "d", b"."), ("120000", "out", b"d/d/../.."))
    await expect_refusal(locate(), "leads out of the repository")
    repository.commit(("120000", "out", b"README.md"), ("120000", "d", b"e"), ("120000", "e", b"d"))
    await expect_refusal(locate(), "leads out of the repository")


async def test_a_folder_made_by_hand_is_used_as_it_is_but_never_as_a_pinned_commit(
    locate: Callable[..., GitCheckout], repository: Repository, tmp_path: Path
) -> None:
    folder = tmp_path / "agents/external/wise"
    folder.mkdir(parents=True)
    assert not locate().needs_update()
    with pytest.raises(AgentOffline) as refused:
        locate(commit=repository.git("rev-parse", "main")).needs_update()
    assert "was not cloned by a node" in refused.value.full_message


@pytest.mark.parametrize("name", ["a:b", "tail.", "con\\x"])
async def test_a_hostile_name_is_refused(locate: Callable[..., GitCheckout], repository: Repository, name: str) -> None:
    repository.commit(("100644", name, b"x"))
    await expect_refusal(locate(), "hostile name")


async def test_a_repository_that_is_too_large_is_refused(
    locate: Callable[..., GitCheckout], repository: Repository, tmp_path: Path
) -> None:
    repository.commit(("100644", "zeros", b"0" * 200_000))
    await expect_refusal(locate(GitSettings(allow=("*",), schemes=("file",), max_bytes=100_000)), "larger than")
    await expect_refusal(locate(GitSettings(allow=("*",), schemes=("file",), max_files=2)), "larger than")
    assert [each.name for each in (tmp_path / "agents/external/.wise").iterdir()] == ["lock"]


async def test_a_repository_that_is_away_or_lacks_the_commit_is_offline(
    locate: Callable[..., GitCheckout], repository: Repository
) -> None:
    await expect_refusal(locate(commit="1" * 40), "git fetch failed")
    await expect_refusal(locate(branch="nowhere"), "git fetch failed")
    repository.path.rename(repository.path.with_suffix(".away"))
    await expect_refusal(locate(), "git fetch failed")


async def test_a_clone_that_takes_too_long_ends(locate: Callable[..., GitCheckout]) -> None:
    await expect_refusal(
        locate(GitSettings(allow=("*",), schemes=("file",), timeout_seconds=0.001)), "not cloned within 0.001 s"
    )


async def test_what_a_crash_left_behind_is_removed(locate: Callable[..., GitCheckout], tmp_path: Path) -> None:
    leftover = tmp_path / "agents/external/.wise/tmp-1-2"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("x")
    await locate().update()
    assert not leftover.exists()
    assert "agent.json" in list_files(tmp_path)


async def test_two_nodes_that_clone_at_once_get_one_whole_clone(
    locate: Callable[..., GitCheckout], repository: Repository, tmp_path: Path
) -> None:
    checkouts = [locate(pull="never") for _ in range(4)]
    async with asyncio.timeout(WAIT_TIMEOUT):
        await asyncio.gather(*(each.update() for each in checkouts))
    commit = repository.git("rev-parse", "main")
    assert {each.find_version() for each in checkouts} == {
        ((tmp_path / "agents/external/.wise" / commit).resolve(), commit)
    }
    assert sorted(each.name for each in (tmp_path / "agents/external/.wise").iterdir()) == sorted(
        [commit, "fetched", "lock"]
    )


async def test_a_folder_that_cannot_be_written_is_offline_and_nothing_is_left(
    locate: Callable[..., GitCheckout], tmp_path: Path
) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "external").write_text("a file where the folder should be")
    await expect_refusal(locate(), "cannot be written")


@requirement("003-32")
async def test_a_clone_gets_no_variable_that_its_location_does_not_grant(tmp_path: Path) -> None:
    folder = copy_example(tmp_path)
    repository = Repository(folder / "repositories" / "other.git")
    card = (
        b'{"name": "wise", "version": "1.0.0", "description": "x", "invocation": {"type": "process", '
        b'"command": ["sh", "-c", "echo $TOKEN"], "options": {"protocol": "oneshot", "env": {"TOKEN": "env:PATH"}}}}'
    )
    commit = repository.commit(("100644", "agent.json", card))

    def change(registry: Any) -> None:
        registry["agents"]["wise"]["location"] |= {"repo": "./repositories/other.git", "commit": commit}

    edit_registry(folder, change)
    settings = {"git": {"allow": ["*"], "schemes": ["file"]}}
    async with running_example(folder, federation=settings) as node:
        answer = await node.ask("wise", "give-advice", "x")
        assert answer["error_code"] == "AGENT_OFFLINE"
        assert "refers to the environment (PATH)" in str(answer)
    edit_registry(folder, lambda registry: registry["agents"]["wise"]["location"].update(env=["PATH"]))
    async with running_example(folder, federation=settings) as node:
        assert (await node.ask("wise", "give-advice", "x"))["ok"]


async def test_a_repository_that_is_not_allowed_is_left_out_and_named(tmp_path: Path) -> None:
    folder = copy_example(tmp_path)
    async with running_example(folder, federation={}) as node:
        problems = (await node.operation("fabric.health"))["result"]["problems"]
        assert any("federation.git.schemes" in each for each in problems.values())
        assert (await node.ask("wise", "give-advice", "x"))["error_code"] == "AGENT_NOT_FOUND"
        assert (await node.ask("units", "convert_length", "", context={"miles": 1}))["ok"]


@needs_root
async def test_a_full_disk_is_offline_and_nothing_is_left(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "wise.git")
    commit = repository.commit(("100644", "noise", os.urandom(3_000_000)))
    disk = tmp_path / "disk"
    with small_disk(disk, megabytes=2):
        location = GitLocation(repo=str(repository.path), commit=commit)
        checkout = find_checkout(git_manifest("wise", location, disk, "registry.json", ALLOW_FILES))
        with pytest.raises(AgentOffline) as refused:
            await checkout.update()
        assert (
            "No space left on device" in refused.value.full_message or "git fetch failed" in refused.value.full_message
        )
        assert checkout.find_version() is None
        assert [each.name for each in (disk / "agents/external/.wise").iterdir()] == ["lock"]
