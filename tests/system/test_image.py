"""The image of a node without a container engine: the instructions of the Containerfile, carried out in order.

A mount namespace stands for the container's file system: `/opt`, `/etc`, `/var/lib`, `/usr/local/bin` and `/tmp` are
copies or empty, so nothing of this machine changes. The node runs in a network of its own, as the image's user. What
this does not show is the base image: Python and the system libraries are those of this machine."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.disk import needs_root

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
TIMEOUT = 600.0
_PRIVATE = ("opt", "var/lib", "tmp", "etc", "usr/local/bin")  # the last two are copies
_COPIED = ("etc", "usr/local/bin")


def read_instructions() -> list[tuple[str, str]]:
    lines = CONTAINERFILE.read_text().replace("\\\n", " ").splitlines()
    return [(words[0], words[1]) for line in lines if line[:1].isupper() and (words := line.split(maxsplit=1))]


def to_commands(instructions: list[tuple[str, str]], context: Path) -> list[str]:
    """Shell commands. `context` has what the image is built from."""
    commands: list[str] = []
    for name, text in instructions:
        if name == "RUN":
            commands.append(text)
        elif name == "ENV":
            commands.append(f"export {text}")
        elif name == "COPY" and "--from" not in text:
            words = text.split()
            mode = next((word.partition("=")[2] for word in words if word.startswith("--chmod=")), "")
            *sources, target = [word for word in words if not word.startswith("--")]
            if target.endswith("/"):
                commands.append(f"mkdir -p {target}")
            commands.append(f"cp {' '.join(str(context / each) for each in sources)} {target}")
            if mode:
                commands.append(f"chmod {mode} {target}")
    return commands


def find_last(instructions: list[tuple[str, str]], name: str) -> str:
    return [text for each, text in instructions if each == name][-1]


def to_words(text: str) -> str:
    """The words of the form of a list, for a shell."""
    found = re.search(r"\[.*\]", text)
    assert found is not None, text
    return shlex.join(word.strip().strip('"') for word in found[0].strip("[]").split(","))


def write_script(folder: Path, context: Path) -> Path:
    instructions = read_instructions()
    user, group = find_last(instructions, "USER").split(":")
    as_user = f"setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs --bounding-set=-all"
    mounts = [
        f"mount --bind {folder / 'root' / each} /{each}" for each in (*(p for p in _PRIVATE if p != "tmp"), "tmp")
    ]
    run = [
        "ip link set lo up",
        f"cd {find_last(instructions, 'WORKDIR')}",
        f"{as_user} {to_words(find_last(instructions, 'ENTRYPOINT'))} {to_words(find_last(instructions, 'CMD'))} &",
        "node=$!",
        "tries=0",
        f"until {as_user} {to_words(find_last(instructions, 'HEALTHCHECK'))}; do",
        "  kill -0 $node; tries=$((tries + 1)); [ $tries -lt 60 ]; sleep 0.5",
        "done",
        "stat --format='owner %U mode %a' /var/lib/a2a-fabric /var/lib/a2a-fabric/fabric.db",
        f"{as_user} a2a-fabric health | grep registry",  # with the key that the first start made
        f"{as_user} sh -c 'touch /opt/a2a-fabric/x 2>/dev/null' && exit 1",
        "kill -TERM $node",
        "wait $node",
        "echo stopped",
    ]
    (folder / "run.sh").write_text("set -e\n" + "\n".join(run) + "\n")
    shutil.copy(folder / "run.sh", folder / "root" / "tmp" / "run.sh")
    build = [
        *mounts,
        'python() { /usr/bin/python3 "$@"; }',  # that of the base image
        *to_commands(instructions, context),
        "unshare --net sh /tmp/run.sh",
    ]
    script = folder / "build.sh"
    script.write_text("set -e\n" + "\n".join(build) + "\n")
    return script


@pytest.mark.soak
@needs_root
def test_the_instructions_of_the_image_make_a_node_that_runs_without_root(tmp_path: Path) -> None:
    for program in ("unshare", "setpriv", "ip", "/usr/bin/python3"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt-get install util-linux iproute2 python3-venv")
    context = tmp_path / "root" / "tmp" / "context"
    for each in _PRIVATE:
        (tmp_path / "root" / each).mkdir(parents=True, exist_ok=True)
    for each in _COPIED:
        shutil.copytree(f"/{each}", tmp_path / "root" / each, dirs_exist_ok=True, symlinks=True)
    for each in ("requirements", "deploy"):
        shutil.copytree(ROOT / each, context / each)
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(context / "dist"), str(ROOT)]
    subprocess.run(words, cwd=ROOT, capture_output=True, timeout=TIMEOUT, check=True)
    script = write_script(tmp_path, Path("/tmp/context"))  # noqa: S108  # of the namespace
    done = subprocess.run(
        ["unshare", "--mount", "sh", str(script)], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, said
    assert "owner fabric mode 700" in done.stdout
    assert '"status":"ready"' in done.stdout
    assert re.search(r"^registry +ok", done.stdout, re.M), said
    assert done.stdout.rstrip().endswith("stopped")
    assert not Path("/opt/a2a-fabric").exists()  # it was another file system
