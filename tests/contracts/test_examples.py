"""The example plug-ins, as an author has them: `mypy --strict` accepts them, and they pass the contract suites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PLUGINS = ("line_runtime", "text_door", "temporary_store")


def run(*command: str | Path, cwd: Path) -> None:
    finished = subprocess.run([sys.executable, "-m", *map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]


@pytest.mark.parametrize("name", PLUGINS)
def test_an_example_passes_its_contract_suite(name: str, tmp_path: Path) -> None:
    settings = ("-o", "addopts=", "-o", "pythonpath=.", "-o", "asyncio_mode=strict", "-p", "no:cacheprovider")
    run("pytest", "-q", "--rootdir", EXAMPLES / name, "-c", "pyproject.toml", *settings, ".", cwd=EXAMPLES / name)


@pytest.mark.parametrize("name", PLUGINS)
def test_an_example_is_strictly_typed(name: str) -> None:
    cache = EXAMPLES.parent / ".mypy_cache" / "examples"
    run("mypy", "--strict", "--cache-dir", cache, "--config-file", "", ".", cwd=EXAMPLES / name)
