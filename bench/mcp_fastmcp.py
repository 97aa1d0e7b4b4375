"""FastMCP in a virtual environment that is created once, so that its packages and ours do not mix.

It gets the same event loop and HTTP parser as the others, which its own dependencies
leave out. It also gets an empty list of certificate authorities: its proxy creates a TLS
context for every call, even without TLS, and would spend nine tenths of its time on
reading a long list of authorities.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import processes

VERSION = "4.1.2"
PACKAGES = (f"fastmcp=={VERSION}", "uvloop", "httptools")
HOME = Path(__file__).parent.parent / ".venv-fastmcp"
_MADE_WITHIN = 900  # seconds


class NotInstalled(Exception):
    """FastMCP cannot be installed; the text says why."""


def stdio_upstream(core: int | None) -> list[str]:
    """The command of the upstream as a program, pinned to this core."""
    return [sys.executable, "-m", "bench.mcp_upstream", "stdio", "" if core is None else str(core)]


@contextmanager
def proxy(upstream: str, core: int | None, *, reused: bool = False) -> Iterator[processes.ServerProcess]:
    """`upstream` is an address, or a command as JSON. Raises NotInstalled."""
    interpreter = _python()
    with tempfile.TemporaryDirectory() as empty:
        env = {"SSL_CERT_FILE": "", "SSL_CERT_DIR": empty}
        argv = (upstream, "reused") if reused else (upstream,)
        with processes.module("bench.mcp_fastmcp_proxy", *argv, core=core, env=env, python=interpreter) as served:
            yield served


def _python() -> str:
    """The interpreter of that environment."""
    interpreter, stamp = HOME / "bin" / "python", HOME / ".installed"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        print(f"Installing FastMCP {VERSION} into {HOME.name} (once) ...", file=sys.stderr)
        _run(sys.executable, "-m", "venv", "--clear", str(HOME))
        _run(str(interpreter), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *PACKAGES)
        stamp.write_text(" ".join(PACKAGES))
    return str(interpreter)


def _run(*argv: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_MADE_WITHIN)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotInstalled(str(exc)) from exc
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(errors[-1] if errors else f"exit code {done.returncode}")
