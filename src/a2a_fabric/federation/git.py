"""Agents in git repositories: which may be cloned, and how a commit becomes a folder of this machine.

Nothing of a repository runs because it was cloned. Git only transfers objects; this module writes the files itself from
the objects, so there are no hooks, filters, submodules or attributes, and a name or a symbolic link that leads out of
the tree is refused before anything is written. Each commit has a folder of its own:

    agents/external/wise              a symbolic link to .wise/COMMIT, replaced atomically
    agents/external/.wise/COMMIT/     the files
    agents/external/.wise/lock        held by the node that clones

A crash leaves at most a folder `tmp-...`, which the next clone removes. Programs that still run in an older commit's
folder keep it: the last two commits stay."""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentOffline, ConfigError, OperatorText
from a2a_fabric.core.federation import AgentOrigin
from a2a_fabric.federation.card import find_path_problem
from a2a_fabric.federation.folders import AgentFolder, manifest_from_folder, read_folder
from a2a_fabric.federation.locations import GIT_RUNTIME
from a2a_fabric.federation.registry_file import GitLocation
from a2a_fabric.federation.repositories import Scheme, check_allowed, parse_repo
from a2a_fabric.federation.settings import GitSettings, PullPolicy

EXTERNAL_FOLDER = "agents/external"

_DAY = 86_400.0
_MAX_STDERR = 2000
_MAX_OUTPUT = 16 * 1024 * 1024  # of one git command; the list of all files is the longest
_KEPT_VERSIONS = 2
_WATCH_INTERVAL = 0.1
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HOSTILE_NAME = re.compile(r"[\x00-\x1f\x7f\\:]|^\.git$|^git~\d+$|[. ]$", re.IGNORECASE)


class GitEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The endpoint of an agent in a repository; written by `git_manifest`."""

    uri: str  # of the repository
    scheme: Scheme
    ref: str  # what is fetched: a ref of the repository, or a commit
    commit: str | None
    link: str  # the agent's folder under agents/external
    path: str = "."  # the agent's folder in the repository
    pull: PullPolicy
    env: tuple[str, ...]
    max_bytes: int
    max_files: int
    timeout: float


def git_manifest(name: str, location: GitLocation, folder: Path, registry: str, settings: GitSettings) -> Manifest:
    """The manifest of an agent before it is cloned. Raises ValueError for a location that is not allowed."""
    is_path = location.repo.startswith(("./", "../"))
    address = parse_repo(str((folder / location.repo).resolve()) if is_path else location.repo)
    check_allowed(address, settings)
    if sum(each is not None for each in (location.branch, location.tag)) > 1:
        raise ValueError("name a branch or a tag, not both")
    if location.commit is None and not location.trust:
        raise ValueError(
            "the code is not pinned: name its `commit`, or say `trust: true` to run whatever the repository holds"
        )
    link = location.local_path or f"./{EXTERNAL_FOLDER}/{name}"
    if find_path_problem(link) or PurePosixPath(link).parts[:2] != PurePosixPath(EXTERNAL_FOLDER).parts:
        raise ValueError(f"localPath: '{link}' is not below {EXTERNAL_FOLDER}/")
    if location.path is not None and (problem := find_path_problem(location.path)):
        raise ValueError(f"path: {problem}")
    ref = (
        f"refs/heads/{location.branch}" if location.branch else f"refs/tags/{location.tag}" if location.tag else "HEAD"
    )
    endpoint = GitEndpoint(
        uri=address.url,
        scheme=address.scheme,
        ref=location.commit or ref,
        commit=location.commit,
        link=str(folder.resolve() / link),
        path=location.path or ".",
        pull="never" if location.commit else location.pull or settings.pull,
        env=location.env,
        max_bytes=settings.max_bytes,
        max_files=settings.max_files,
        timeout=settings.timeout_seconds,
    )
    shown_ref = location.commit or location.tag or location.branch or ""
    return Manifest(
        agent_id=name,
        endpoint=msgspec.to_builtins(endpoint),
        runtime=GIT_RUNTIME,
        origin=AgentOrigin(location="git", registry=registry, url=address.name, ref=shown_ref),
    )


def find_checkout(manifest: Manifest) -> GitCheckout:
    return GitCheckout(manifest.agent_id, msgspec.convert(manifest.endpoint, GitEndpoint))


class GitCheckout:
    """The clone of one agent. Many nodes may use the same one at a time."""

    def __init__(self, agent_id: str, endpoint: GitEndpoint) -> None:
        self.agent_id = agent_id
        self.endpoint = endpoint
        self.link = Path(endpoint.link)
        self._store = self.link.parent / f".{self.link.name}"

    def find_version(self) -> tuple[Path, str] | None:
        """The agent's folder and its commit; None before the first clone. A folder made by hand is used as it is."""
        if not self.link.is_dir():
            return None
        target = self.link.resolve()
        commit = target.name if self.link.is_symlink() and _COMMIT.fullmatch(target.name) else ""
        return target / self.endpoint.path, commit

    def needs_update(self) -> bool:
        """Whether the clone is missing, is not the pinned commit, or is due by its pull policy.

        Raises AgentOffline for a pinned commit whose place is taken by a folder that holds who knows what.
        """
        version = self.find_version()
        if version is None:
            return True
        if not self.link.is_symlink():
            if self.endpoint.commit is not None:
                raise self._offline(f"{self.link} was not cloned by a node, so it is not the pinned commit: remove it")
            return False
        if self.endpoint.commit is not None:
            return version[1] != self.endpoint.commit
        if self.endpoint.pull == "never":
            return False
        return self.endpoint.pull == "always" or time.time() - self._read_fetched_at() > _DAY

    def read_agent(self) -> tuple[AgentFolder, str] | None:
        """The card of the clone, if there is one. Raises ConfigError for a card that cannot be used."""
        version = self.find_version()
        if version is None:
            return None
        folder = read_folder(version[0])
        if folder.card.name != self.agent_id:
            raise folder.file.error(f"the registry calls this agent '{self.agent_id}'", ("name",))
        if folder.card.invocation is None:
            raise folder.file.error("the card of an external agent needs an `invocation`")
        return folder, version[1]

    def complete(self, manifest: Manifest) -> Manifest:
        """The manifest with what the clone's card says, and its commit. Raises ConfigError."""
        agent = self.read_agent()
        if agent is None or manifest.origin is None:
            return manifest
        origin = replace(manifest.origin, commit=agent[1])
        return replace(manifest_from_folder(agent[0], origin), endpoint=manifest.endpoint, runtime=GIT_RUNTIME)

    async def update(self) -> None:
        """Fetch what the location names, and make it the agent's folder. Raises AgentOffline; then nothing changed."""
        try:
            async with asyncio.timeout(self.endpoint.timeout):
                await asyncio.to_thread(self._store.mkdir, parents=True, exist_ok=True)
                async with _hold_lock(self._store / "lock"):
                    if self.endpoint.pull != "always" and not self.needs_update():
                        return  # another node did it meanwhile
                    await self._fetch()
        except TimeoutError as exc:
            raise self._offline(f"not cloned within {self.endpoint.timeout:g} s") from exc
        except OSError as exc:
            raise self._offline(f"cannot be written: {exc.strerror}") from exc

    async def _fetch(self) -> None:
        await asyncio.to_thread(self._remove_leftovers)
        folder = self._store / f"tmp-{os.getpid()}-{time.monotonic_ns()}"
        try:
            repo = folder / "repo.git"
            await self._run_git(None, "init", "--quiet", "--bare", "--template=", str(repo))
            refspec = f"+{self.endpoint.ref}:refs/fabric/tip"
            options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
            await self._run_git(repo, "fetch", *options, "--", self.endpoint.uri, refspec, watch=folder)
            commit = (await self._run_git(repo, "rev-parse", "--verify", "refs/fabric/tip^{commit}")).decode().strip()
            if self.endpoint.commit is not None and commit != self.endpoint.commit:
                raise self._offline(f"the repository sent commit {commit} instead of {self.endpoint.commit}")
            version = self._store / commit
            if not version.is_dir():
                listing = await self._run_git(repo, "ls-tree", "-r", "-z", "-l", "--full-tree", commit)
                files = list(self._parse_tree(listing))
                await self._write_files(repo, files, folder / "files")
                await asyncio.to_thread((folder / "files").rename, version)
            await asyncio.to_thread(self._point_to, commit)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _parse_tree(self, listing: bytes) -> Iterator[tuple[str, str, int, str]]:
        """Mode, object, size and path of each file. Raises AgentOffline for what must not be written."""
        total = 0
        names: set[str] = set()
        for number, record in enumerate(filter(None, listing.split(b"\0")), start=1):
            head, _, raw_path = record.partition(b"\t")
            mode, kind, digest, size_text = head.decode().split()
            try:
                path = raw_path.decode()
            except UnicodeDecodeError as exc:
                raise self._offline("the repository has a file whose name is not UTF-8") from exc
            if kind == "commit":
                continue  # a submodule; its code is another repository, which was not allowed
            if any(_HOSTILE_NAME.search(part) or part in ("", ".", "..") for part in path.split("/")):
                raise self._offline(f"the repository has a file with a hostile name: {path[:100]!r}")
            if path.casefold() in names:
                raise self._offline(f"the repository has two files that differ in case only: {path[:100]!r}")
            names.add(path.casefold())
            total += int(size_text) if size_text != "-" else 0
            if total > self.endpoint.max_bytes or number > self.endpoint.max_files:
                raise self._too_large()
            yield mode, digest, int(size_text), path

    async def _write_files(self, repo: Path, files: list[tuple[str, str, int, str]], target: Path) -> None:
        await asyncio.to_thread(target.mkdir)
        links: list[tuple[Path, str]] = []
        async with aclosing(self._read_blobs(repo, files)) as blobs:
            async for (mode, _, _, path), content in blobs:
                if mode == "120000":
                    links.append((target / path, self._check_link(path, content)))
                else:
                    await asyncio.to_thread(_write_file, target / path, content, 0o755 if mode == "100755" else 0o644)
        for link, text in links:  # after all files, so that no file is written through a link
            await asyncio.to_thread(_write_link, link, text)
        for link, _ in links:  # links may lead through one another
            if not await asyncio.to_thread(_stays_inside, link, target):
                raise self._offline(f"the symbolic link {link.name[:100]!r} leads out of the repository")

    async def _read_blobs(
        self, repo: Path, files: list[tuple[str, str, int, str]]
    ) -> AsyncGenerator[tuple[tuple[str, str, int, str], bytes]]:
        """The content of each file, one after the other, from one process."""
        process = await self._start_git(repo, "cat-file", "--batch")
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        try:
            for file in files:
                process.stdin.write(f"{file[1]}\n".encode())
                await process.stdin.drain()
                head = (await process.stdout.readline()).decode().split()
                if len(head) != 3 or int(head[2]) != file[2]:
                    raise self._offline(f"the repository lacks an object: {' '.join(head)[:100]}")
                content = await process.stdout.readexactly(file[2])
                await process.stdout.readexactly(1)
                yield file, content
        except asyncio.IncompleteReadError as exc:
            raise self._offline("git cat-file failed") from exc
        finally:
            _kill_group(process)
            await process.wait()

    def _check_link(self, path: str, content: bytes) -> str:
        text = content.decode(errors="replace")
        depth = len(path.split("/")) - 1
        for part in text.split("/"):
            depth += -1 if part == ".." else 0 if part in ("", ".") else 1
            if depth < 0:
                break
        if text.startswith("/") or depth < 0 or "\0" in text:
            raise self._offline(f"the symbolic link {path[:100]!r} leads out of the repository")
        return text

    def _point_to(self, commit: str) -> None:
        temporary = self._store / "tmp-link"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(f".{self.link.name}/{commit}")
        os.replace(temporary, self.link)
        (self._store / "fetched").touch()
        versions = [each for each in self._store.iterdir() if _COMMIT.fullmatch(each.name)]
        (self._store / commit).touch()
        for old in sorted(versions, key=lambda each: each.stat().st_mtime, reverse=True)[_KEPT_VERSIONS:]:
            shutil.rmtree(old, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Of a clone that a crash interrupted; the lock is held, so no other clone is at work."""
        for path in self._store.glob("tmp-*"):
            if path.is_symlink():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)

    def _read_fetched_at(self) -> float:
        try:
            return (self._store / "fetched").stat().st_mtime
        except OSError:
            return 0.0

    async def _run_git(self, repo: Path | None, *arguments: str, watch: Path | None = None) -> bytes:
        """The output of a git command. Raises AgentOffline; ends the command if it is cancelled or grows too large."""
        process = await self._start_git(repo, *arguments)
        assert process.stdin is not None  # noqa: S101
        process.stdin.close()
        watcher = None if watch is None else asyncio.ensure_future(self._watch_size(watch, process))
        try:
            output, errors = await asyncio.gather(
                self._read_output(process, process.stdout, _MAX_OUTPUT),
                self._read_output(process, process.stderr, 2**20),
            )
            await process.wait()
        finally:
            if watcher is not None:
                watcher.cancel()
            if process.returncode is None:
                _kill_group(process)
                await process.wait()
        if watcher is not None and watcher.done() and not watcher.cancelled():
            raise self._too_large()
        if process.returncode:
            reason = errors.decode(errors="replace").strip()[-_MAX_STDERR:]
            raise self._offline(f"git {arguments[0]} failed: {reason}")
        return output

    async def _start_git(self, repo: Path | None, *arguments: str) -> asyncio.subprocess.Process:
        place = () if repo is None else ("--git-dir", str(repo))
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            "git", *self._list_options(), *place, *arguments,
            stdin=pipe, stdout=pipe, stderr=pipe if arguments[0] != "cat-file" else asyncio.subprocess.DEVNULL,
            env=self._build_environment(), start_new_session=True,
        )  # fmt: skip

    async def _read_output(
        self, process: asyncio.subprocess.Process, stream: asyncio.StreamReader | None, limit: int
    ) -> bytes:
        """Raises AgentOffline for more than the limit, after the command was killed."""
        output = bytearray()
        while stream is not None and (chunk := await stream.read(2**16)):
            output += chunk
            if len(output) > limit:
                _kill_group(process)
                raise self._too_large()
        return bytes(output)

    async def _watch_size(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        """Ends when the folder is too large, after the command was killed."""
        while await asyncio.to_thread(_measure, folder) <= self.endpoint.max_bytes:  # noqa: ASYNC110  # of git's own
            await asyncio.sleep(_WATCH_INTERVAL)
        _kill_group(process)

    def _list_options(self) -> Iterator[str]:
        settings = {
            "core.hooksPath": os.devnull,
            "core.fsmonitor": "false",
            "credential.helper": "",
            "gc.auto": "0",
            "http.followRedirects": "false",
            "http.lowSpeedLimit": "1",  # a command whose node was killed ends by itself, too
            "http.lowSpeedTime": f"{max(1, math.ceil(self.endpoint.timeout))}",
            "protocol.allow": "never",
            f"protocol.{self.endpoint.scheme}.allow": "always",
            "submodule.recurse": "false",
            "transfer.fsckObjects": "true",
        }
        for name, value in settings.items():
            yield from ("-c", f"{name}={value}")

    def _build_environment(self) -> Mapping[str, str]:
        """Of the node's own variables only what finds programs and, for ssh, its keys."""
        names = ("PATH", "HOME", "SSH_AUTH_SOCK") if self.endpoint.scheme == "ssh" else ("PATH",)
        return {
            **{name: os.environ[name] for name in names if name in os.environ},
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=15",
            "LC_ALL": "C",
        }

    def _too_large(self) -> AgentOffline:
        limit = f"{self.endpoint.max_bytes} bytes or {self.endpoint.max_files} files"
        return self._offline(f"the repository is larger than {limit} (`federation.git`)")

    def _offline(self, reason: str) -> AgentOffline:
        whole = f"The repository of agent '{self.agent_id}' ({self.endpoint.uri}): {reason}"
        public = f"The repository of agent '{self.agent_id}' cannot be used"
        return AgentOffline(OperatorText(whole, public), agent_id=self.agent_id)


@asynccontextmanager
async def _hold_lock(path: Path) -> AsyncIterator[None]:
    """An exclusive lock among processes; waiting for it is bounded by the caller."""
    with path.open("w") as file:
        while not _try_lock(file):  # noqa: ASYNC110  # another process holds it
            await asyncio.sleep(_WATCH_INTERVAL)
        yield  # closing the file releases the lock


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_file(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)
    path.chmod(mode)


def _write_link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _stays_inside(link: Path, root: Path) -> bool:
    try:
        return link.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a circle of links
        return False


def _measure(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def describe_card_error(error: ConfigError, agent_id: str) -> AgentOffline:
    return AgentOffline(OperatorText(error.message, "The agent's card cannot be used"), agent_id=agent_id)
