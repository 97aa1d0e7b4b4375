"""The command as people and scripts use it, against a real node with the demo fleet."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest
import yaml
from typer.testing import CliRunner

from a2a_fabric.cli.program import COMMANDS, app, load_command
from a2a_fabric.cli.schema import (
    build_agents_schema,
    build_card_schema,
    build_fabric_schema,
    build_reference,
    build_registry_schema,
)
from a2a_fabric.version import __version__
from tests.marks import requirement
from tests.system.node import COMMAND, WAIT_TIMEOUT, Node, environment, run, running_node, until

ROOT = Path(__file__).parents[2]
SLOW = "import pathlib, sys, time; pathlib.Path('started').touch(); time.sleep(30)"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node


def child_of(pid: int, name: str) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(pid) and name in (entry / "cmdline").read_text():
                return int(entry.name)
        except OSError:
            continue  # it ended meanwhile
    raise AssertionError(f"{pid} has no child {name}")


def in_terminal(node: Node, *words: str) -> str:
    """What a person sees: stdout and stderr on one terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words], env=environment(node.home, TERM="xterm"), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
        assert process.wait(WAIT_TIMEOUT) == 0
    return seen.decode()


def test_the_examples_of_the_page_work_as_pasted(node: Node) -> None:
    examples = re.findall(r"^a2a-fabric .*$|^cat .*$", (ROOT / "docs/cli.md").read_text(), re.M)
    talking = [line for line in examples if not re.search("fabric up|completion|schema", line)]
    assert len(talking) == 14
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -e\n" + "\n".join(talking)
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=ROOT,
        env=environment(node.home, PATH=path),
        capture_output=True,
        text=True,
        timeout=3 * WAIT_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "So 12 * 7 + 16 = 100" in done.stdout


@requirement("001-02")
def test_agents_are_listed_with_their_capabilities_and_trust(node: Node) -> None:
    agents = {agent["agent_id"]: agent for agent in node.json("agents")["agents"]}
    assert {"percy", "scribe", "counter", "sorter"} <= set(agents)
    assert {"python", "http", "process"} <= {agent["runtime"] for agent in agents.values()}
    assert {agent["trust_tier"] for agent in agents.values()} == {"org"}
    assert "reason" in [capability["name"] for capability in agents["percy"]["capabilities"]]
    only = node.json("agents", "--capability", "summarize")
    assert {agent["agent_id"] for agent in only["agents"]} == {"percy", "scribe"}


def test_lists_are_plain_text_without_colour_or_cuts_when_piped(node: Node) -> None:
    listed = node.run("agents", COLUMNS="20").stdout
    assert "\x1b" not in listed
    assert re.search(r"^sorter +online +process +sort +Sorts lines\.$", listed, re.M)
    assert "Summarizes texts by selecting their most important sentences, and finds key words." in listed


def test_on_a_terminal_tokens_come_with_a_bar_of_progress_that_leaves_no_trace_behind(node: Node) -> None:
    seen = in_terminal(node, "call", "percy", "reason", "What is 12 * 7 + 16?")
    assert "step 1 of 3" in seen
    left = re.sub(r"[^\n]*\r\x1b\[2K", "", seen.replace("\r\n", "\n"))
    assert left == "12 * 7 = 84\n84 + 16 = 100\nSo 12 * 7 + 16 = 100\nsteps: 3\n"


def test_a_call_streams_its_answer_and_prints_it_once(node: Node) -> None:
    calling = node.start("call", "percy", "reason", " and ".join(f"{n} + {n}" for n in range(1, 20)))
    assert calling.stdout is not None
    first = calling.stdout.readline()
    assert calling.poll() is None  # more is to come
    rest, remarks = calling.communicate(timeout=WAIT_TIMEOUT)
    lines = (first + rest).splitlines()
    assert lines[:3] == ["1 + 1 = 2", "2 + 2 = 4", "3 + 3 = 6"]
    assert len(lines) == 20
    assert lines[-1] == "steps: 19"
    assert remarks == ""
    assert calling.returncode == 0


def test_a_call_as_json_is_one_envelope(node: Node) -> None:
    reply = node.json("call", "percy", "reason", "All men are mortal. Socrates is a man.")
    assert reply["ok"] is True
    assert reply["result"]["answer"] == "Socrates is man and man is mortal, so Socrates is mortal"
    assert re.fullmatch(r"[0-9a-f-]{36}", reply["trace"]["trace_id"])


def test_arguments_come_as_json_as_pairs_and_from_stdin(node: Node) -> None:
    lines = "10\n9\n10\n"
    assert node.run("call", "sorter", "sort", "-", stdin=lines).stdout == "10\n10\n9\nlines: 3\n"
    pairs = ("--arg", "numeric=true", "--arg", "unique=true")
    assert node.run("call", "sorter", "sort", lines, *pairs).stdout == "9\n10\nlines: 2\n"
    context = json.dumps({"text": "b\na", "reverse": True})
    assert node.run("call", "sorter", "sort", "--context", context).stdout == "b\na\nlines: 2\n"
    counted = node.json("call", "counter", "count", "three small words")
    assert counted["result"]["words"] == 3


def test_misuse_is_told_apart_from_failure() -> None:
    misused = (
        ("call", "percy"),
        ("call", "percy", "reason", "--context", "{"),
        ("call", "percy", "reason", "--context", "[]"),
        ("call", "percy", "reason", "--arg", "x"),
        ("agents", "--status", "asleep"),
        ("nonsense",),
    )
    for words in misused:
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stdout) == (2, ""), words
        assert "Error: " in done.stderr


def test_a_wrong_agent_is_answered_with_the_nearest_one(node: Node) -> None:
    done = node.run("call", "percey", "reason", "x")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "Error: Agent 'percey' not found (nearest: percy). List agents with: a2a-fabric agents\n"
    failed = node.run("call", "percey", "reason", "x", "--json")
    assert failed.returncode == 1
    said = json.loads(failed.stdout)
    assert (said["ok"], said["error_code"]) == (False, "AGENT_NOT_FOUND")
    assert said["trace"]["trace_id"]


def test_without_a_node_the_next_move_is_offered(tmp_path: Path) -> None:
    done = run("agents", "--url", "http://127.0.0.1:9", home=tmp_path, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "Error: No node at http://127.0.0.1:9. Start one with: a2a-fabric up\n"


def test_a_wrong_key_and_a_wrong_scheme_are_told_with_what_to_do(node: Node) -> None:
    done = node.run("agents", "--token", "not-the-key-of-this-node")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: The credentials are not valid on this node. Name a key of that node with --token or FABRIC_TOKEN\n"
    )
    secure = node.url.replace("http://", "https://")
    done = node.run("agents", "--url", secure)
    assert done.returncode == 1
    assert done.stderr == f"Error: The server at {secure} does not use TLS. Try http:// instead of https://\n"


def test_the_kept_key_is_not_sent_to_strangers(node: Node) -> None:
    away = node.url.replace("127.0.0.1", "localhost.localdomain")
    done = node.run("agents", "--url", node.url)
    assert done.returncode == 0
    done = node.run("agents", "--url", away)
    assert done.returncode == 1
    assert "No node" in done.stderr or "Credentials are required" in done.stderr


@requirement("001-03")
def test_describe_shows_the_schema_of_each_argument(node: Node) -> None:
    shown = node.run("describe", "sorter").stdout
    assert re.search(r"^numeric +boolean +no \(False\) +By number", shown, re.M)
    assert node.json("describe", "sorter")["capabilities"][0]["input_schema"]["required"] == ["text"]


@requirement("001-05")
def test_route_shows_who_would_answer_and_who_else(node: Node) -> None:
    plan = node.json("route", "scribe", "summarize")
    assert plan["selected_agent"] == "scribe"
    assert [hop["agent_id"] for hop in plan["fallbacks"]] == ["percy"]
    assert re.search(
        r"^2 +percy +declared +declared fallback of scribe$", node.run("route", "scribe", "summarize").stdout, re.M
    )


def test_tools_and_health_are_shown_for_people_and_for_programs(node: Node) -> None:
    assert "math.calculate" in node.run("tools", "--category", "math").stdout
    assert "agent.percy.reason" in [tool["tool_id"] for tool in node.json("tools", "--provider", "agent")["tools"]]
    count = len(node.json("agents")["agents"])
    assert re.search(rf"^agents +{count} \(", node.run("health").stdout, re.M)
    assert node.json("health")["ok"] is True


def test_when_an_agent_is_gone_its_fallback_answers_and_the_remark_says_so(tmp_path: Path) -> None:
    text = "Cats sleep all day. Cats eat at night, and cats hunt mice. Rain fell."
    with running_node(tmp_path) as node:
        assert "instead of" not in node.run("call", "scribe", "summarize", text).stderr
        os.kill(child_of(node.process.pid, "a2a_fabric.demo.serve"), signal.SIGKILL)
        done = node.run("call", "scribe", "summarize", text)
        assert done.returncode == 0
        assert "cats hunt mice" in done.stdout
        assert done.stderr.startswith("Answered by percy instead of scribe")


def test_interrupting_a_call_cancels_it(tmp_path: Path) -> None:
    entry = {
        "agent_id": "slow",
        "runtime": "process",
        "endpoint": {"command": [sys.executable, "-c", SLOW], "protocol": "oneshot"},
        "capabilities": [{"name": "wait"}],
    }
    (tmp_path / "agents.yaml").write_text(json.dumps([entry]))
    with running_node(tmp_path) as node:
        calling = node.start("call", "slow", "wait")
        until((tmp_path / "started").exists, "the agent to start")
        calling.send_signal(signal.SIGINT)
        printed, said = calling.communicate(timeout=WAIT_TIMEOUT)
        assert (calling.returncode, printed, said) == (130, "", "Cancelled.\n")
        until(lambda: '"error_code":"CANCELLED"' in node.said, "the node to notice")


def test_check_says_what_would_run_and_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text("node_id: n\nlisten: 127.0.0.1:9\nagents: [some.yaml]\n")
    (tmp_path / "some.yaml").write_text("- agent_id: a\n  endpoint: {uri: 'http://127.0.0.1:9/a'}\n")
    done = run("check", home=tmp_path, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^listens on +127\.0\.0\.1:9$", done.stdout, re.M)
    assert re.search(r"^a +http +http://127\.0\.0\.1:9/a +discovered$", done.stdout, re.M)
    assert not (tmp_path / "key").exists()


MISTAKES = {
    "fabric.yaml:2: limits.body_byte: unknown key 'body_byte' (nearest: body_bytes)": "limits:\n  body_byte: 5",
    "fabric.yaml:2: doors[0].kind: no door of kind 'fabrik' (nearest: fabric)": "doors:\n- kind: fabrik",
    "fabric.yaml:2: not valid YAML": "a: [",
    "agents.yaml:3: [0].tag: unknown key 'tag' (nearest: tags)": "- agent_id: a\n  endpoint: {}\n  tag: [x]",
    "agents.yaml:1: [0]: agent 'a': no runtime of kind 'htp'": "- agent_id: a\n  runtime: htp\n  endpoint: {}",
    "agents.yaml:2: [0]: agent 'a': The program 'no-such'": "\n- agent_id: a\n  endpoint: {command: [no-such]}",
    "agents.yaml:2: agents[0]: agent 'a': The input schema of capability 'c' is not valid": (
        "agents:\n- agent_id: a\n  endpoint: {uri: 'http://h'}\n  capabilities: [{name: c, input_schema: {type: 5}}]"
    ),
}


@pytest.mark.parametrize("complaint", MISTAKES)
def test_check_names_file_line_and_key_of_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: str
) -> None:
    (tmp_path / complaint.partition(":")[0]).write_text(MISTAKES[complaint] + "\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["check"])
    assert done.exit_code == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_the_listed_purpose(name: str) -> None:
    about = load_command(name, COMMANDS[name]).help
    assert about.splitlines()[0] == COMMANDS[name].about
    assert f"Example: a2a-fabric {name}" in about


def test_the_version_is_printed_without_loading_a_node(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "a2a_fabric", "version"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT,
        check=True,
    )
    assert done.stdout.startswith("a2a-fabric 0.")
    for heavy in ("uvicorn", "httptools", "starlette", "rich.console", "a2a_fabric.app"):
        assert not re.search(rf"\| +{re.escape(heavy)}$", done.stderr, re.M), heavy


def test_shells_complete_commands_and_agents(node: Node) -> None:
    def completed(line: str) -> str:
        words = {"_A2A_FABRIC_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return node.run(**words).stdout

    assert completed("a2a-fabric he").split() == ["health"]
    assert completed("a2a-fabric call per").split() == ["percy"]
    assert completed("a2a-fabric call percy rea").split() == ["reason"]


def test_the_published_schemas_are_current() -> None:
    schemas = {
        "fabric": build_fabric_schema(),
        "agents": build_agents_schema(),
        "agent": build_card_schema(),
        "registry": build_registry_schema(),
    }
    for name, schema in schemas.items():
        assert json.loads((ROOT / f"schemas/{name}.schema.json").read_text()) == schema, "run scripts/generate"


def test_the_reference_page_is_current() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == build_reference(), "run scripts/generate"


def test_the_schema_of_agents_accepts_the_demo_agents() -> None:
    valid = jsonschema_rs.validator_for(build_agents_schema()).is_valid
    entries = yaml.safe_load((ROOT / "src/a2a_fabric/demo/agents.yaml").read_text())
    assert valid(entries)
    assert valid({"agents": entries})
    assert not valid([{**entries[0], "endpint": {}}])


def test_a_table_fits_80_columns_and_counts_what_is_many(tmp_path: Path) -> None:
    names = [f"capability_number_{number}" for number in range(17)]
    entry = {
        "agent_id": "many",
        "runtime": "process",
        "description": "Does many things. " * 20,
        "endpoint": {"command": [sys.executable, "-c", SLOW], "protocol": "oneshot"},
        "capabilities": [{"name": name} for name in names],
    }
    (tmp_path / "agents.yaml").write_text(json.dumps([entry]))
    with running_node(tmp_path) as node:
        piped = node.run("agents").stdout
        assert "17 in all" in piped
        assert names[3] not in piped
        assert names[16] in node.run("agents", "--wide").stdout
        leader, follower = pty.openpty()
        shown = subprocess.run(
            [*COMMAND, "agents"], env=environment(node.home), cwd=tmp_path, stdout=follower, check=True
        )
        os.close(follower)
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in os.read(leader, 65536).decode().splitlines()]
        os.close(leader)
        assert shown.returncode == 0
        assert max(len(line) for line in lines) <= 80
        assert len(lines) <= 8


def test_the_version_is_an_option_too(tmp_path: Path) -> None:
    done = run("--version", home=tmp_path, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"a2a-fabric {__version__}\n")
