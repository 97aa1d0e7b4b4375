"""Keys and settings that change while the node runs: `a2a-fabric keys`, edits of fabric.yaml, SIGHUP."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest

from a2a_fabric.config import LimitSettings
from a2a_fabric.identity.signing import SigningKey
from tests.marks import requirement
from tests.system.node import WAIT_TIMEOUT, Node, run, running_node, until


def status(node: Node, key: str, name: str = "fabric.agent.list") -> int:
    """Of one request with this key."""
    body = json.dumps({"name": name, "arguments": {}}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urlopen(Request(f"{node.url}/mcp/call", body, headers), timeout=WAIT_TIMEOUT) as reply:  # noqa: S310
            return int(reply.status)
    except HTTPError as refused:
        refused.close()
        return refused.code


def write(folder: Path, **settings: Any) -> None:
    """Replaced as a whole, as most editors do it."""
    draft = folder / ".fabric.yaml.new"
    draft.write_text(json.dumps(settings))  # JSON is YAML
    draft.replace(folder / "fabric.yaml")


def until_status(node: Node, key: str, expected: int) -> None:
    until(lambda: status(node, key) == expected, f"a reply of {expected}")


def check_at_node(node: Node) -> None:
    """The same over the admin API, from where neither the store nor its configuration is."""
    elsewhere = node.home / "elsewhere"
    elsewhere.mkdir()

    def keys(*words: str) -> Any:
        done = run("keys", *words, "--url", node.url, "--json", home=node.home, folder=elsewhere)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    made = keys("create", "distant", "--scope", "agent:percy", "--for", "1d")
    assert (made["state"], bool(made["expires_at"])) == ("active", True)
    until_status(node, made["key"], 200)
    rotated = keys("rotate", "distant", "--overlap", "1h")
    until_status(node, rotated["key"], 200)
    listed = [(each["name"], each["state"]) for each in keys("list")["keys"] if each["name"] == "distant"]
    assert listed == [("distant", "ending"), ("distant", "active")]
    assert node.json("keys", "list")["count"] == keys("list")["count"]
    assert keys("revoke", "distant")["count"] == 2
    assert "no usable key" in keys("revoke", "distant")["error"]
    assert keys("list", "--token", made["key"])["error_code"] == "AUTH_INVALID"
    assert [*elsewhere.iterdir()] == []


@requirement("001-58")
def test_keys_are_made_rotated_and_revoked_while_the_node_runs(tmp_path: Path) -> None:
    write(tmp_path)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    early = run("keys", "create", "early", "--scope", "*", home=home, folder=tmp_path)
    assert early.returncode == 0, early.stderr  # before the node's first start
    with running_node(tmp_path) as node:
        assert status(node, early.stdout.strip()) == 200
        made = node.json("keys", "create", "reader", "--scope", "agent:percy", "--for", "1d")
        until_status(node, made["key"], 200)
        rotated = node.json("keys", "rotate", "reader", "--overlap", "1h")
        until_status(node, rotated["key"], 200)
        assert status(node, made["key"]) == 200  # both, while they overlap
        listed = node.json("keys", "list")["keys"]
        assert [(each["name"], each["state"]) for each in listed] == [
            ("early", "active"), ("reader", "ending"), ("reader", "active"),
        ]  # fmt: skip
        again = node.json("keys", "rotate", "reader", "--overlap", "0s")
        until_status(node, again["key"], 200)
        for old in (made, rotated):
            until_status(node, old["key"], 401)
        node.json("keys", "revoke", "reader")
        until_status(node, again["key"], 401)
        check_at_node(node)
        assert status(node, early.stdout.strip()) == 200
        assert status(node, node.token) == 200
        for secret in (made["key"], rotated["key"], early.stdout.strip()):
            assert secret.encode() not in (tmp_path / "fabric.db").read_bytes()
            assert secret not in node.said
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
    used = {each["name"]: each["last_used_at"] for each in json.loads(run(
        "keys", "list", "--json", home=home, folder=tmp_path).stdout)["keys"]}  # fmt: skip
    assert used["early"]  # written when the node stopped, at the latest


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("create", "x y", "--scope", "*"), "cannot be the name"),
        (("create", "../../etc/passwd", "--scope", "*"), "cannot be the name"),
        (("create", "psk", "--scope", "*"), "the node uses itself"),
        (("create", "key-0123", "--scope", "*"), "cannot be the name"),
        (("create", "q"), "--scope"),
        (("create", "q", "--scope", "everything"), "is not a scope"),
        (("create", "q", "--scope", "*", "--view", "office"), "no view 'office'"),
        (("create", "carol", "--scope", "*"), "auth.keys"),
        (("create", "Carol", "--scope", "*"), "looks like 'carol'"),
        (("create", "ONE", "--scope", "*"), "looks like 'one', which is another caller"),
        (("create", "0ne", "--scope", "*"), "looks like 'one'"),
        (("create", "o-n.e", "--scope", "*"), "looks like 'one'"),
        (("create", "0perator", "--scope", "*"), "the node uses itself"),
        (("rotate", "nobody"), "no usable key"),
        (("revoke", "nobody"), "no usable key"),
    ],
)
def test_a_key_that_cannot_be_is_refused_with_a_reason(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    write(tmp_path, auth={"keys": [{"id": "carol", "key": "carols-own-key"}]})
    home = tmp_path / "home"
    home.mkdir()
    assert run("keys", "create", "one", "--scope", "*", home=home, folder=tmp_path).returncode == 0
    refused = run("keys", *words, home=home, folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert reason in refused.stderr


def test_an_export_holds_no_keys(tmp_path: Path) -> None:
    write(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    assert run("keys", "create", "one", "--scope", "*", home=home, folder=tmp_path).returncode == 0
    assert run("store", "export", "out.jsonl", home=home, folder=tmp_path).returncode == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2  # head and end


@requirement("001-58")
def test_an_edit_of_the_configuration_takes_effect_and_a_broken_one_does_not(tmp_path: Path) -> None:
    write(tmp_path, auth={"keys": [{"id": "carol", "key": "carols-first-key"}]})
    with running_node(tmp_path) as node:
        # The key that the node made for itself counts beside those of the configuration.
        assert (status(node, "carols-first-key"), status(node, node.token)) == (200, 200)
        write(tmp_path, auth={"keys": [{"id": "carol", "key": "carols-second-key"}]}, log={"level": "debug"})
        until_status(node, "carols-second-key", 200)
        assert (status(node, "carols-first-key"), status(node, node.token)) == (401, 200)

        write(tmp_path, auth={"keys": [{"id": "carol", "key": "carols-third-key", "scopes": ["nonsense"]}]})
        until(lambda: "the last good one stays in use" in node.said, "the reason in the log")
        assert "'nonsense' is not a scope" in node.said
        assert (status(node, "carols-second-key"), status(node, "carols-third-key")) == (200, 401)

        limits = {
            name: (value or 10) * 0.5 if isinstance(value, float) else (value or 10) * 2
            for name, value in msgspec.to_builtins(LimitSettings()).items()
        }
        write(
            tmp_path,
            auth={"keys": [{"id": "carol", "key": "carols-fourth-key"}]},
            limits=limits,
            routing={"fallback": False},
        )
        until_status(node, "carols-fourth-key", 200)
        until(lambda: 'need a restart of the node: routing.fallback"' in node.said, "what needs a restart")
        assert all(f"limits.{name}" in node.said for name in limits)
        (tmp_path / "fabric.yaml").unlink()
        node.signal(signal.SIGHUP)
        until(lambda: node.said.count("the last good one stays in use") == 2, "the second reason in the log")
        assert status(node, "carols-fourth-key") == 200


@requirement("001-58")
def test_sighup_reads_the_configuration_again_and_the_node_goes_on(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("CAROL=carols-first-key\n")
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [SigningKey.generate().public_jwk]}))
    write(tmp_path, auth={"keys": [{"id": "carol", "key": "env:CAROL"}]})
    with running_node(tmp_path) as node:
        assert status(node, "carols-first-key") == 200
        (tmp_path / ".env").write_text("CAROL=carols-second-key\n")
        node.signal(signal.SIGHUP)
        until_status(node, "carols-second-key", 200)
        assert status(node, "carols-first-key") == 401
        write(
            tmp_path,
            auth={
                "keys": [{"id": "carol", "key": "env:CAROL"}],
                "issuers": [{"id": "corp", "issuer": "corp", "jwks_file": "keys.json", "accepts": ["passport"]}],
            },
        )
        node.signal(signal.SIGHUP)
        until(lambda: node.said.count("was reloaded") >= 2, "the second reload")
        assert status(node, "carols-second-key") == 200
        assert node.process.poll() is None


def test_sighup_does_not_end_a_node_without_a_configuration(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.signal(signal.SIGHUP)
        until(lambda: "no configuration file" in node.said, "the remark in the log")
        assert status(node, node.token) == 200
