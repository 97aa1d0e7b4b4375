"""The wheel as users install it: with pip, pipx and uvx, and the bill of materials of a release."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from a2a_fabric.version import __version__

ROOT = Path(__file__).parents[2]
TIMEOUT = 300.0


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_templates_of_init(wheel: Path) -> None:
    names = run(sys.executable, "-m", "zipfile", "-l", wheel, cwd=ROOT)
    for name in ("fabric.yaml", "agents.yaml", "a2a-fabric.service", "compose.yaml"):
        assert f"a2a_fabric/cli/templates/{name}" in names


def tool(folder: Path, name: str) -> Path:
    """A packaging tool in an environment of its own; skips if the package index does not have it."""
    if found := shutil.which(name):
        return Path(found)
    run(sys.executable, "-m", "venv", folder / "tools", cwd=folder)
    words: list[str | Path] = [folder / "tools/bin/python", "-m", "pip", "install", "--quiet", name]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs {name}: pip install {name}")
    return folder / "tools/bin" / name


@pytest.mark.soak
def test_pip_installs_the_wheel_into_a_fresh_environment_and_init_works(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python, program = tmp_path / "env/bin/python", tmp_path / "env/bin/a2a-fabric"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    assert __version__ in run(program, "version", cwd=tmp_path)
    run(program, "init", "node", "--yes", "--listen", "127.0.0.1:0", cwd=tmp_path, FABRIC_HOME=str(tmp_path / "home"))
    assert "agents" in run(program, "check", cwd=tmp_path / "node", FABRIC_HOME=str(tmp_path / "home"))


@pytest.mark.soak
def test_pipx_installs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    pipx = tool(tmp_path, "pipx")
    places = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin"), "PIPX_MAN_DIR": str(tmp_path)}
    run(pipx, "install", "--python", sys.executable, str(wheel), cwd=tmp_path, **places)
    assert __version__ in run(tmp_path / "bin/a2a-fabric", "version", cwd=tmp_path)


@pytest.mark.soak
def test_uvx_runs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    uv = tool(tmp_path, "uv")
    places = {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_TOOL_DIR": str(tmp_path / "uv")}
    words: list[str | Path] = [
        uv,
        "tool",
        "run",
        "--python",
        sys.executable,
        "--from",
        str(wheel),
        "a2a-fabric",
        "version",
    ]
    assert __version__ in run(*words, cwd=tmp_path, **places)


@pytest.mark.soak
def test_the_bill_of_materials_names_every_locked_package_with_its_hashes(tmp_path: Path) -> None:
    """With the words of scripts/release."""
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    lock = ROOT / "requirements" / "release.lock"
    pip: list[str | Path] = [tmp_path / "env/bin/python", "-m", "pip", "install", "--quiet", "--no-deps"]
    run(*pip, "--require-hashes", "-r", lock, cwd=tmp_path)
    (line,) = re.findall(r'cyclonedx-py" (.*?)requirements/image\.lock', (ROOT / "scripts/release").read_text(), re.S)
    words = [word for word in line.replace("\\\n", " ").split() if word]
    words[words.index("-o") + 1] = str(tmp_path / "sbom.json")
    run(tmp_path / "env/bin/cyclonedx-py", *words, "requirements/image.lock", cwd=ROOT)
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "a2a-fabric")
    locked = set(re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements/image.lock").read_text(), re.M))
    assert {each["name"] for each in bill["components"]} == locked
    assert all(each["version"] for each in bill["components"])
