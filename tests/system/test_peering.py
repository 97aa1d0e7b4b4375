"""Two organisations without a common NATS: HTTPS, a mandate or passport, and on both sides a list of what is shared."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.fixtures.certificates import Authority
from tests.system.node import Node, run, running_node, until

HELD = """
from a2a_fabric import Agent

agent = Agent("any")

@agent.capability
async def where(task: str = "") -> dict:
    return {"organisation": "lab"}
"""
LAB = """
node_id: lab
store: sqlite:fabric.db
agents: [agents.yaml]
tls: {cert: cert.pem, key: key.pem}
auth:
  issuers: [{id: corp, issuer: corp, jwks_file: issuer.jwks.json, accepts: [passport, mandate]}]
doors: [{kind: fabric}, {kind: mcp}, {kind: discovery}]
"""


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "home").mkdir(mode=0o700, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def command(folder: Path, *words: str) -> str:
    done = run(*words, home=folder / "home", folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def find_joined(node: Node) -> set[str]:
    return {each["agent_id"] for each in node.json("agents")["agents"] if each["agent_id"].startswith("lab/")}


@pytest.mark.parametrize("credential", ["mandate", "passport"])
def test_organisations_share_what_both_sides_list(
    tmp_path: Path, credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab_folder, own_folder, authority = tmp_path / "lab", tmp_path / "own", Authority("an authority")
    key, certificate = authority.vouch_for("127.0.0.1")
    agents = "".join(
        f"- {{agent_id: {name}, endpoint: {{uri: 'python:held:agent'}}, trust_tier: org}}\n"
        for name in ("open", "other", "closed")
    )
    write(lab_folder, held__py=HELD, agents__yaml=agents, fabric__yaml=LAB)
    (lab_folder / "key.pem").write_bytes(key)
    (lab_folder / "cert.pem").write_bytes(certificate)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))  # of the nodes, and of this process
    command(lab_folder, "passport", "keygen", "issuer.key")
    scopes = ("--scope", "agent:open", "--scope", "agent:other", "--for", "1h")  # what the lab shares
    issue: tuple[str, ...] = ("mandate", "issue", "own", "node", "--issuer", "corp", "--key", "issuer.key")
    if credential == "passport":
        issue = ("passport", "issue", "own", "--id", "node", "--key", "issuer.key")
    given = command(lab_folder, *issue, *scopes)
    with running_node(lab_folder, PYTHONPATH=str(lab_folder)) as lab:
        field = "psk" if credential == "mandate" else "passport"
        entry = f"{{uri: '{lab.url}', {field}: env:LAB_CREDENTIAL, agents: ['op*', 'closed']}}"  # what is taken in
        write(
            own_folder,
            agents__yaml=f"- {{agent_id: lab, runtime: fabric, endpoint: {entry}}}\n",
            fabric__yaml="node_id: own\nstore: sqlite:fabric.db\nagents: [agents.yaml]\n",
        )
        with running_node(own_folder, LAB_CREDENTIAL=given) as own:
            until(lambda: find_joined(own) == {"lab/open"}, "the shared agent")
            called = own.json("call", "lab/open", "where")
            assert called["result"] == {"organisation": "lab"}, called
            for refused in ("other.where", "closed.where"):
                done = own.run("call", "lab", refused, "--json")
                assert json.loads(done.stdout)["ok"] is False, done.stdout
        listed = read_catalog(lab, credential, given)
        assert "open" in listed
        assert "closed" not in listed


def read_catalog(node: Node, credential: str, given: str) -> str:
    """The AI Catalog, as a program of the other organisation reads it to find out what there is."""
    name, value = ("Authorization", f"Bearer {given}") if credential == "mandate" else ("X-Agent-Passport", given)
    request = Request(f"{node.url}/.well-known/ai-catalog.json", headers={name: value})  # noqa: S310  # our own node
    with urlopen(request, timeout=10) as reply:  # noqa: S310
        return str(json.loads(reply.read())["entries"])
