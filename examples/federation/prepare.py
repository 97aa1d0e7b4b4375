"""Makes `repositories/wise.git`, the repository of the agent `wise`. Its commit is the same every time."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "repositories" / "wise"


def make_repository(target: Path) -> str:
    """The commit of a new bare repository with the files of `repositories/wise`."""
    who = {"NAME": "Fabric", "EMAIL": "fabric@example.com", "DATE": "2026-11-18T00:00:00Z"}
    identity = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    environ = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_INDEX_FILE": str(target / "index"),
        **identity,
    }

    def git(*arguments: str, text: str | None = None) -> str:
        command = ["git", "--git-dir", str(target), *arguments]
        return subprocess.run(
            command, env=environ, input=text, check=True, capture_output=True, text=True
        ).stdout.strip()

    subprocess.run(["git", "init", "--quiet", "--bare", "--template=", str(target)], env=environ, check=True)
    for path in sorted(SOURCE.iterdir()):
        blob = git("hash-object", "-w", "--no-filters", str(path))
        git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path.name}")
    commit = git("commit-tree", git("write-tree"), "-m", "wise")
    git("update-ref", "refs/heads/main", commit)
    git("symbolic-ref", "HEAD", "refs/heads/main")
    return commit


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE.with_suffix(".git")
    if not path.exists():
        commit = make_repository(path)
        print(f"made {path.name}, the repository of the agent 'wise', with the commit {commit}")
