"""The nodes of this user on this machine: their addresses while they run, and their key, which is kept in a file.

The command line and `FabricClient()` find the node that was started last, and its key, in the same way. Each node also
has an entry by name, and removes it when it stops. So an entry without its process is that of a node that crashed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.identity.keyfile import KeyFile, find_state_folder

DEFAULT_URL = "http://127.0.0.1:8000"
_BARE_ADDRESS = re.compile(r"(?:localhost|(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5})(?:/.*)?")


class RunningNode(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    pid: int
    started_at: float
    files: tuple[str, ...] = ()  # its configuration and manifests, as absolute paths
    name: str = ""
    folder: str = ""  # where it was started
    log: str | None = None  # the file of a node that was started with --detach
    born: str | None = None  # tells its process from a later one with the same number, where the system can

    @property
    def is_running(self) -> bool:
        return _is_running(self.pid) and self.born in (None, read_birth(self.pid))


class StateFolder:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.folder = find_state_folder(environ)
        self.key = KeyFile(self.folder / "key")
        self.node_file = self.folder / "node.json"
        self.nodes = self.folder / "nodes"  # NAME.json: a node that runs, or crashed
        self.logs = self.folder / "logs"  # NAME.log: of nodes that were started with --detach
        self.offers = self.folder / "offers"  # what agents of nodes without a store of their own offered last

    def read_node(self) -> RunningNode | None:
        """The node that this user started last, if it is still running."""
        try:
            node = msgspec.json.decode(self.node_file.read_bytes(), type=RunningNode)
        except (OSError, msgspec.DecodeError):
            return None
        return node if node.is_running else None

    def read_entry(self, name: str) -> RunningNode | None:
        """The node of this name, running or crashed."""
        try:
            return msgspec.json.decode((self.nodes / f"{name}.json").read_bytes(), type=RunningNode)
        except (OSError, msgspec.DecodeError):
            return None

    def list_entries(self) -> list[RunningNode]:
        """All nodes that run or crashed, in order of their names."""
        names = sorted(path.stem for path in self.nodes.glob("*.json"))
        return [entry for name in names if (entry := self.read_entry(name)) is not None]

    def choose_name(self, preferred: str) -> str:
        """The name, or the first one like it whose node does not run."""
        names = (preferred, *(f"{preferred}-{number}" for number in range(2, 1000)))
        entries = ((each, self.read_entry(each)) for each in names)
        return next((each for each, entry in entries if entry is None or not entry.is_running), preferred)


def read_birth(pid: int) -> str | None:
    """When a process started, in the system's own words; None where the system does not tell."""
    return _read_stat(pid, 19)


def _read_stat(pid: int, number: int) -> str | None:
    """What the system tells of a process: 0 is its state, 19 its birth. None where it does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[number]
    except (OSError, IndexError):
        return None


def _is_running(pid: int) -> bool:
    """A process that has ended stays in the list of the system until its parent asks, in some containers for ever."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    return _read_stat(pid, 0) not in ("Z", "X")


def complete_url(url: str) -> str:
    """A node's address without a slash at its end; `localhost:8000` is http://localhost:8000. Raises BadInput."""
    complete = f"http://{url}" if _BARE_ADDRESS.fullmatch(url) else url
    if not complete.startswith(("http://", "https://")):
        raise BadInput(f"'{url[:200]}' is not the URL of a node, such as {DEFAULT_URL}")
    return complete.rstrip("/")


def find_node(environ: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """The address and token of the node to use, if the caller names none: FABRIC_URL, else the node started last."""
    environ = os.environ if environ is None else environ
    state = StateFolder(environ)
    running = state.read_node()
    url = complete_url(environ.get("FABRIC_URL") or (running.url if running else DEFAULT_URL))
    return url, find_token(url, environ, state)


def check_token(token: str) -> str:
    """The token without surrounding spaces, if an HTTP header can carry it. Raises BadInput."""
    stripped = token.strip(" ")
    try:
        stripped.encode("latin-1")
    except UnicodeEncodeError as exc:
        character = stripped[exc.start]
        raise BadInput(
            f"The token cannot be sent: an HTTP header cannot carry {character!r}. Check that it was copied correctly"
        ) from exc
    if control := next((each for each in stripped if ord(each) < 32 or 126 < ord(each) < 160), None):
        hint = "remove the line break" if control in "\r\n" else "check that it was copied correctly"
        raise BadInput(f"The token cannot be sent: it holds the control character {control!r}; {hint}")
    return stripped


def find_token(url: str, environ: Mapping[str, str], state: StateFolder) -> str | None:
    """The token of the environment; else the saved key, which is sent only to this user's own nodes."""
    configured_token = environ.get("FABRIC_TOKEN") or environ.get("FABRIC_PSK")
    node = state.read_node()
    is_own_node = (node is not None and url == node.url) or _is_local(url)
    if configured_token or not is_own_node:
        return configured_token
    return state.key.read()


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
