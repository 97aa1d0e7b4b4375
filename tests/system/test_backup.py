"""Backup and restore as docs/operating.md has them: an export of any store, a copy of SQLite, a dump of PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.fixtures import nats
from tests.fixtures.postgres import Server, shared
from tests.system.node import Node, running_node, until

GONE = "agents:\n- {agent_id: gone, endpoint: {uri: 'http://127.0.0.1:9/'}, capabilities: [{name: act}]}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents.yaml").write_text(GONE)
    return tmp_path


def fill(node: Node) -> str:
    """A job that has ended, of an agent that is not there, and the key of a caller; the id of the job."""
    started = node.run("call", "gone", "act", "--async")
    job_id = started.stdout.split()[0]
    assert node.run("jobs", "cancel", job_id).returncode == 0
    until(lambda: "cancelled" in node.run("jobs", "show", job_id).stdout, "the job to end")
    assert node.run("keys", "create", "reader", "--scope", "metrics").returncode == 0
    return job_id


def stop(node: Node) -> None:
    node.signal()
    assert node.wait() == 0


def check(node: Node, job_id: str, *, has_key: bool) -> None:
    assert "cancelled" in node.run("jobs", "show", job_id).stdout
    assert ("reader" in node.run("keys", "list").stdout) is has_key


def copy_sqlite(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


def test_a_copy_of_the_file_brings_back_jobs_and_keys(folder: Path) -> None:
    with running_node(folder) as node:
        job_id = fill(node)
        copy_sqlite(folder / "fabric.db", folder / "backup.db")  # while the node runs
        stop(node)
    for each in folder.glob("fabric.db*"):
        each.unlink()
    (folder / "backup.db").replace(folder / "fabric.db")
    with running_node(folder) as node:
        check(node, job_id, has_key=True)


@pytest.mark.parametrize(
    ("make_address", "options"), [(lambda: shared().database(), []), (lambda: nats.shared().address(), ["--keys"])]
)
def test_an_export_goes_into_another_store_with_keys_only_if_they_are_asked_for(
    folder: Path, make_address: Callable[[], str], options: list[str]
) -> None:
    address = make_address()
    with running_node(folder) as node:
        job_id = fill(node)
        exported = node.run("store", "export", *options)
        assert exported.returncode == 0
        assert ("left out: 1." in exported.stderr) is not bool(options)
        (folder / "backup.jsonl").write_text(exported.stdout)
        stop(node)
        assert node.run("store", "import", "backup.jsonl", "--store", address).returncode == 0
    (folder / "fabric.yaml").write_text(f"store: '{address}'\n")
    with running_node(folder) as node:
        check(node, job_id, has_key=bool(options))


def test_a_dump_of_postgresql_brings_back_jobs_and_keys(folder: Path) -> None:
    server: Server = shared()
    first, second = server.database(), server.database()
    (folder / "fabric.yaml").write_text(f"store: '{first}'\n")
    with running_node(folder) as node:
        job_id = fill(node)
        dump = server.folder / "backup.dump"
        server.run("pg_dump", "--schema=a2a_fabric", "--format=custom", f"--file={dump}", first)  # while the node runs
        stop(node)
    server.run("pg_restore", f"--dbname={second}", str(dump))
    dump.unlink()
    (folder / "fabric.yaml").write_text(f"store: '{second}'\n")
    with running_node(folder) as node:
        check(node, job_id, has_key=True)
