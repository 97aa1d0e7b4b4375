"""Jobs on the command line: submitted, followed, left and found again, beside a real node with a real file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from a2a_fabric.cli.program import JobCommands, app, load_command
from a2a_fabric.client import SyncFabricClient
from tests.marks import requirement
from tests.system.node import WAIT_TIMEOUT, Node, run, running_node, until
from tests.system.test_cli import in_terminal

AGENTS = '''
import asyncio, os
from a2a_fabric import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.result import progress
from a2a_fabric.core.result import Question
from a2a_fabric.core.result import make_input_required

desk = Agent("desk")


@desk.capability(idempotent=True)
async def gated(task: str, gate: str = ""):
    """Say the first word, wait until the file is there, say the rest."""
    words = task.split()
    for number, word in enumerate(words, start=1):
        yield progress(100 * number / len(words), f"word {number}")
        yield word + " "
        while gate and not os.path.exists(gate):
            await asyncio.sleep(0.02)
    yield {"answer": " ".join(words), "words": len(words)}


@desk.capability
async def curious(task: str, call: Call):
    """Ask before answering."""
    if not call.answers:
        return make_input_required({"name": Question(kind="form", message="Who are you?")}, "c1")
    answer = call.answers.answers["name"]
    return {"answer": f"hello {answer.content}" if answer.action == "accept" else "hello stranger"}


@desk.capability
async def broken(task: str):
    """Fail."""
    raise RuntimeError("out of order")
'''
MANIFEST = """
- agent_id: desk
  runtime: python
  endpoint: {uri: "python:job_agents:desk"}
"""


@contextmanager
def node_in(folder: Path, listen: str = "127.0.0.1:0", settings: str = "lease_seconds: 2") -> Iterator[Node]:
    (folder / "job_agents.py").write_text(AGENTS)
    (folder / "agents.yaml").write_text(MANIFEST)
    (folder / "fabric.yaml").write_text(f"jobs: {{{settings}}}\n")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    with running_node(folder, listen=listen, PYTHONPATH=path) as node:
        with SyncFabricClient(node.url, node.token) as fabric:
            until(lambda: fabric.describe("desk")["capabilities"], "the agent to say what it does")
        yield node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node_in(tmp_path_factory.mktemp("jobs")) as node:
        yield node


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def submit(node: Node, capability: str, task: str, gate: Path | None = None) -> str:
    context = {"gate": str(gate)} if gate is not None else None
    with SyncFabricClient(node.url, node.token) as fabric:
        return fabric.submit("desk", capability, task, context).job_id


def printed(node: Node, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr without starting a process: for what processes have shown already."""
    done = CliRunner().invoke(app, words, env={"FABRIC_HOME": str(node.home), "FABRIC_URL": node.url})
    return done.exit_code, done.stdout, done.stderr


def in_process(node: Node, *words: str) -> tuple[int, Any]:
    """The same as JSON."""
    failed, out, _ = printed(node, *words, "--json")
    return failed, json.loads(out)


def state(node: Node, job_id: str) -> str:
    with SyncFabricClient(node.url, node.token) as fabric:
        return str(fabric.job(job_id).status()["state"])


def until_state(node: Node, job_id: str, wanted: str) -> None:
    until(lambda: state(node, job_id) == wanted, f"{job_id} to be {wanted}")


def until_says(process: subprocess.Popen[str], word: str) -> None:
    """Read on stdout, which need not be a whole line."""
    assert process.stdout is not None
    heard = b""
    while word.encode() not in heard:
        some = os.read(process.stdout.fileno(), 4096)
        assert some, heard
        heard += some


@requirement("001-04")
def test_an_async_call_prints_the_id_of_a_job_that_can_be_followed_shown_and_listed(node: Node) -> None:
    done = node.run("call", "desk", "gated", "one two three", "--async")
    job_id = done.stdout.strip()
    assert re.fullmatch(r"job_[0-9a-f]{32}", job_id)
    assert done.stderr == f"Follow it with: a2a-fabric jobs follow {job_id}\n"
    followed = node.run("jobs", "follow", job_id)
    assert (followed.returncode, followed.stdout, followed.stderr) == (0, "one two three \nwords: 3\n", "")
    assert printed(node, "call", "--follow", job_id) == (0, followed.stdout, "")
    _, shown, _ = printed(node, "jobs", "show", job_id)
    assert re.search(r"^state +completed$", shown, re.M)
    assert re.search(r"^task +one two three$", shown, re.M)
    assert re.search(r"^3 +\d+\.\d s +progress +33 % word 1$", shown, re.M)
    assert re.search(r"^answer: one two three$", shown, re.M)
    assert re.search(rf"^{job_id}  completed  desk +gated +\d+ s$", node.run("jobs").stdout, re.M)


@requirement("001-07")
def test_programs_get_a_job_as_json_and_its_events_as_json_lines(node: Node) -> None:
    asked = ("call", "desk", "gated", "a b", "--async", "--key", "the-same")
    job = node.json(*asked)
    assert in_process(node, *asked)[1]["job_id"] == job["job_id"]
    lines = [json.loads(line) for line in node.run("jobs", "follow", job["job_id"], "--json").stdout.splitlines()]
    assert [line["number"] for line in lines[:-1]] == list(range(1, len(lines)))
    assert (lines[-1]["event"], lines[-1]["result"]) == ("final", {"answer": "a b", "words": 2})
    _, rest, _ = printed(node, "jobs", "follow", job["job_id"], "--after", "3", "--json")
    assert [json.loads(line) for line in rest.splitlines()[:-1]] == lines[3:-1]
    _, shown = in_process(node, "jobs", "show", job["job_id"])
    assert shown["events"] == lines[:-1]
    assert shown["result"] == lines[-1]["result"]
    assert in_process(node, "jobs", "show", job["job_id"], "--last", "2")[1]["events"] == lines[-3:-1]
    _, listed = in_process(node, "jobs", "--state", "completed", "--agent", "desk", "--limit", "1")
    assert (listed["count"], listed["jobs"][0]["job_id"]) == (1, job["job_id"])
    assert in_process(node, "jobs", "list", "--agent", "nobody") == (0, {"jobs": [], "count": 0})


def test_a_job_may_be_given_a_moment_an_end_a_priority_and_a_webhook(node: Node) -> None:
    asked = ("call", "desk", "gated", "later", "--async", "--priority", "urgent", "--run-at", "2h", "--ttl", "3h")
    job = in_process(node, *asked)[1]
    assert (job["state"], job["priority"]) == ("queued", "urgent")
    assert 7100 < job["run_at"] - job["created_at"] < 7300
    assert 10700 < job["expires_at"] - job["created_at"] < 10900
    dated = ("call", "desk", "gated", "x", "--async", "--run-at", "2099-01-02T03:04:05Z", "--expires", "2099-02-01")
    other = in_process(node, *dated)[1]
    assert (other["run_at"], other["expires_at"] > other["run_at"]) == (4071006245.0, True)
    listed = node.run("jobs", "--state", "queued").stdout
    assert re.search(rf"^{job['job_id']}  queued in 2 h +desk ", listed, re.M), listed
    in_process(node, "jobs", "cancel", job["job_id"], other["job_id"])
    refused = node.run("call", "desk", "gated", "x", "--async", "--webhook", "https://hooks.example/x")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "webhook.secret" in refused.stderr  # this node has none to sign with
    assert "jobs.webhook_secret" in refused.stderr


def test_on_a_terminal_a_followed_job_has_a_bar_of_progress_that_leaves_no_trace_behind(node: Node) -> None:
    job_id = submit(node, "gated", "one")
    until_state(node, job_id, "completed")
    seen = in_terminal(node, "jobs", "follow", job_id)
    assert "━━ 100 % word 1" in seen
    assert re.sub(r"[^\n]*\r\x1b\[2K", "", seen.replace("\r\n", "\n")) == "one \nwords: 1\n"


@requirement("001-07")
def test_leaving_with_ctrl_c_lets_the_job_go_on_and_says_how_to_come_back(node: Node, gate: Path) -> None:
    job_id = submit(node, "gated", "one two", gate=gate)
    following = node.start("jobs", "follow", job_id)
    until_says(following, "one")
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=WAIT_TIMEOUT)
    assert following.returncode == 130
    found = re.fullmatch(
        rf"Detached; the job goes on\. Follow it with: a2a-fabric (jobs follow {job_id} --after (\d+))\n", said
    )
    assert found, said
    assert state(node, job_id) == "running"
    gate.touch()
    back = printed(node, *found[1].split(), "--json")[1].splitlines()
    assert json.loads(back[0])["number"] == int(found[2]) + 1
    assert json.loads(back[-1])["result"]["answer"] == "one two"


def test_who_named_a_node_is_sent_back_to_it(node: Node, gate: Path, tmp_path: Path) -> None:
    """From a home that knows no node: the commands work as they are printed."""
    there = f" --url {node.url}"
    asked = ("call", "desk", "gated", "one two", "--arg", f"gate={gate}", "--async", "--url", node.url)
    done = run(*asked, "--token", node.token, home=tmp_path, folder=tmp_path)
    job_id = done.stdout.strip()
    assert done.stderr == f"Follow it with: a2a-fabric jobs follow {job_id}{there}\n"
    following = node.start("call", "--follow", job_id, "--url", node.url)
    until_says(following, "one")
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=WAIT_TIMEOUT)
    assert re.search(rf"Follow it with: a2a-fabric jobs follow {job_id} --after \d+{there}\n$", said), said
    gate.touch()
    again = printed(node, "jobs", "follow", job_id, "--url", node.url)
    assert again == (0, "one two \nwords: 2\n", "")
    curious = submit(node, "curious", "x")
    assert printed(node, "jobs", "follow", curious, "--url", node.url)[2].endswith(f" name=…{there}\n")
    in_process(node, "jobs", "cancel", curious)


def test_who_comes_back_sees_the_rest_and_not_the_whole_again(node: Node) -> None:
    job_id = submit(node, "gated", "one two three")
    until_state(node, job_id, "completed")
    assert printed(node, "jobs", "follow", job_id, "--after", "4") == (0, "two three \nwords: 3\n", "")
    assert printed(node, "jobs", "follow", job_id, "--after", "99") == (0, "one two three\nwords: 3\n", "")


def test_a_question_is_shown_with_the_command_that_answers_it(node: Node) -> None:
    job_id = submit(node, "curious", "x")
    asked = node.run("jobs", "follow", job_id)
    assert (asked.returncode, asked.stdout) == (0, "")
    assert asked.stderr == (f"desk asks (name): Who are you?\nAnswer with: a2a-fabric jobs answer {job_id} name=…\n")
    wrong = node.run("jobs", "answer", job_id, "nmae=Ann")
    assert (wrong.returncode, wrong.stderr) == (
        1,
        "Error: There is no question 'nmae' (nearest: name). The questions are: name\n",
    )
    assert printed(node, "jobs", "answer", job_id, "name=Ann")[:2] == (0, f"{job_id}  queued\n")
    assert printed(node, "jobs", "follow", job_id) == (0, "hello Ann\n", "")
    failed, late = in_process(node, "jobs", "answer", job_id, "name=Ann")
    assert (failed, late["error_code"]) == (1, "CONFLICT")


def test_a_question_may_be_declined(node: Node) -> None:
    job_id = submit(node, "curious", "x")
    until_state(node, job_id, "input_required")
    assert in_process(node, "jobs", "answer", job_id, "--decline")[1]["job_id"] == job_id
    assert printed(node, "jobs", "follow", job_id) == (0, "hello stranger\n", "")


def test_a_failed_job_fails_its_follower_and_can_be_run_again_as_a_new_one(node: Node) -> None:
    job_id = submit(node, "broken", "x")
    followed = node.run("jobs", "follow", job_id)
    assert (followed.returncode, followed.stdout) == (1, "")
    assert followed.stderr == "Error: RuntimeError: out of order\n"
    failed, lines, _ = printed(node, "jobs", "follow", job_id, "--json")
    assert (failed, json.loads(lines.splitlines()[-1])["error_code"]) == (1, "UPSTREAM_ERROR")
    again = printed(node, "jobs", "retry", job_id)[1].strip()
    assert again.startswith("job_")
    assert again != job_id
    until_state(node, again, "failed")


def test_cancelling_ends_a_running_job_and_changes_nothing_about_an_ended_one(node: Node, gate: Path) -> None:
    job_id = submit(node, "gated", "one two", gate=gate)
    until_state(node, job_id, "running")
    failed, early = in_process(node, "jobs", "retry", job_id)
    assert (failed, early["error_code"]) == (1, "CONFLICT")
    assert in_process(node, "jobs", "cancel", job_id)[0] == 0
    until_state(node, job_id, "cancelled")
    assert printed(node, "jobs", "cancel", job_id) == (0, f"{job_id}  cancelled\n", "")
    followed = node.run("jobs", "follow", job_id)
    assert (followed.returncode, followed.stderr) == (1, "Error: The job was cancelled\n")


def test_the_operator_sees_and_steers_the_jobs_of_other_callers(node: Node, gate: Path) -> None:
    kim = json.loads(node.run("keys", "create", "kim", "--scope", "*", "--url", node.url, "--json").stdout)["key"]
    with SyncFabricClient(node.url, kim) as fabric:
        waiting = fabric.submit("desk", "gated", "one two", {"gate": str(gate)}).job_id
        asking = fabric.submit("desk", "curious", "hi").job_id
    as_operator = ("--as-operator", "--url", node.url)
    until(lambda: in_process(node, "jobs", "show", asking, *as_operator)[1]["job"]["state"] == "input_required", "it")
    assert in_process(node, "jobs", "show", waiting)[1]["error_code"] == "JOB_NOT_FOUND"
    listed = in_process(node, "jobs", "list", *as_operator)[1]["jobs"]
    assert {job["job_id"]: job["owner"] for job in listed}.items() >= {waiting: "psk:kim", asking: "psk:kim"}.items()
    assert "kim" in printed(node, "jobs", "list", *as_operator)[1]
    answered = in_process(node, "jobs", "answer", asking, "name=Ann", *as_operator)
    assert (answered[0], answered[1]["job_id"]) == (0, asking)
    until(lambda: in_process(node, "jobs", "show", asking, *as_operator)[1]["result"], "the answer")
    shown = in_process(node, "jobs", "show", asking, *as_operator)[1]
    assert (shown["result"]["answer"], bool(shown["events"])) == ("hello Ann", True)
    assert in_process(node, "jobs", "cancel", waiting, *as_operator)[0] == 0
    again = in_process(node, "jobs", "retry", asking, *as_operator)[1]["job_id"]
    assert in_process(node, "jobs", "show", again, *as_operator)[1]["job"]["owner"] == "psk:kim", "for the same caller"
    refused = in_process(node, "jobs", "list", "--as-operator", "--url", node.url, "--token", kim)
    assert (refused[0], refused[1]["error_code"]) == (1, "AUTH_DENIED")


def test_of_several_jobs_a_misspelt_one_does_not_keep_the_others_from_being_cancelled(node: Node) -> None:
    waits = [in_process(node, "call", "desk", "gated", "x", "--async", "--run-at", "2h")[1]["job_id"] for _ in "ab"]
    ended = submit(node, "gated", "one")
    until_state(node, ended, "completed")
    done = node.run("jobs", "cancel", waits[0], "job_nowhere", waits[1], ended)
    assert done.returncode == 1
    assert done.stdout == f"{waits[0]}  cancelled\n{waits[1]}  cancelled\n{ended}  completed\n"
    assert done.stderr == (
        "The job had ended already.\nError: Job 'job_nowhere' not found. List yours with: a2a-fabric jobs\n"
    )
    failed, said = in_process(node, "jobs", "cancel", "job_nowhere", waits[0])
    assert (failed, said["count"], said["not_found"]) == (1, 1, ["job_nowhere"])


@requirement("001-07")
def test_unknown_jobs_and_absent_nodes_are_told_at_once(node: Node, tmp_path: Path) -> None:
    done = node.run("jobs", "show", "job_nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: Job 'job_nowhere' not found. List yours with: a2a-fabric jobs\n"
    for command in ("show", "follow", "cancel", "retry"):
        failed, said = in_process(node, "jobs", command, "job_nowhere")
        assert (failed, said["error_code"]) == (1, "JOB_NOT_FOUND"), command
    away = run("jobs", "follow", "job_x", "--url", "http://127.0.0.1:9", home=tmp_path, folder=tmp_path)
    assert (away.returncode, away.stderr) == (
        1,
        "Error: No node at http://127.0.0.1:9. Start one with: a2a-fabric up\n",
    )


def test_misuse_is_told_apart_from_failure() -> None:
    misused = (
        ("jobs", "show"),
        ("jobs", "--state", "asleep"),
        ("jobs", "follow", "x", "--after", "-1"),
        ("jobs", "answer", "x"),
        ("jobs", "answer", "x", "Ann"),
        ("jobs", "answer", "x", "name=Ann", "--decline"),
        ("jobs", "prune", "--older-than", "long"),
        ("jobs", "nonsense"),
        ("call", "percy", "reason", "--follow", "job_x"),
        ("call", "percy", "reason", "--key", "k"),
        ("call", "percy", "reason", "--priority", "high"),
        ("call", "percy", "reason", "--async", "--priority", "hihg"),
        ("call", "percy", "reason", "--async", "--run-at", "soon"),
        ("call", "percy", "reason", "--async", "--ttl", "-5m"),
        ("call", "percy", "reason", "--async", "--ttl", "5m", "--expires", "10m"),
        ("call", "--async"),
    )
    for words in misused:
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stdout) == (2, ""), words
        assert "Error: " in done.stderr


@pytest.mark.parametrize("name", JobCommands.rows)
def test_every_command_has_help_with_an_example_and_the_listed_purpose(name: str) -> None:
    about = load_command(name, JobCommands.rows[name]).help
    assert about.splitlines()[0] == JobCommands.rows[name].about
    assert f"Example: a2a-fabric jobs {name}" in about


def test_shells_complete_commands_jobs_and_states(node: Node) -> None:
    def completed(line: str) -> list[str]:
        words = {"_A2A_FABRIC_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return node.run(**words).stdout.split()

    job_id = submit(node, "gated", "one")
    assert completed(f"a2a-fabric jobs follow {job_id[:-1]}") == [job_id]
    assert completed("a2a-fabric jobs list --state ca") == ["cancelled"]
    assert completed("a2a-fabric jobs ") == [*JobCommands.rows]


def test_old_jobs_are_pruned_from_the_store_beside_the_running_node(node: Node, gate: Path) -> None:
    ended, running = submit(node, "gated", "one"), submit(node, "gated", "one", gate=gate)
    until_state(node, ended, "completed")
    store = f"sqlite:{node.folder}/fabric.db"
    unchanged = printed(node, "jobs", "prune", "--older-than", "1d", "--store", store)
    assert unchanged == (0, "Removed 0 jobs, 0.0 MB.\n", "")
    smaller = in_process(node, "jobs", "prune", "--older-than", "1d", "--keep-bytes", "0", "--store", store)[1]
    assert smaller["jobs"] >= 1
    ended = submit(node, "gated", "one")
    until_state(node, ended, "completed")
    assert node.json("jobs", "prune", "--older-than", "0s")["jobs"] == 1
    assert [job["job_id"] for job in in_process(node, "jobs")[1]["jobs"]] == [running]
    gate.touch()
    until_state(node, running, "completed")


@requirement("001-04")
def test_a_call_that_is_handed_over_is_watched_on_as_a_job(tmp_path: Path) -> None:
    gate, other = tmp_path / "gate", tmp_path / "other"
    with node_in(tmp_path, settings="job_after_ms: 100") as node:
        calling = node.start("call", "desk", "gated", "one two", "--arg", f"gate={gate}")
        assert calling.stderr is not None
        said = calling.stderr.readline()
        assert re.fullmatch(r"The call goes on as job job_\w+; Ctrl-C stops following, not the job\.\n", said)
        gate.touch()
        out, _ = calling.communicate(timeout=WAIT_TIMEOUT)
        assert (calling.returncode, out) == (0, "one two \nwords: 2\n")
        leaving = node.start("call", "desk", "gated", "one two", "--arg", f"gate={other}")
        assert leaving.stderr is not None
        job_id = re.search(r"job_\w+", leaving.stderr.readline())
        assert job_id
        leaving.send_signal(signal.SIGINT)
        _, said = leaving.communicate(timeout=WAIT_TIMEOUT)
        assert (leaving.returncode, said.startswith("Detached; the job goes on.")) == (130, True)
        assert state(node, job_id[0]) == "running"
        _, handle = in_process(node, "call", "desk", "gated", "one two", "--arg", f"gate={other}")
        assert handle["job_id"] == handle["result"]["job_id"]
        failed, shown, hint = printed(node, "call", "desk", "gated", "x y", "--arg", f"gate={other}", "--no-stream")
        assert (failed, shown.startswith("job_")) == (0, True)
        assert hint.endswith(f"Follow it with: a2a-fabric jobs follow {shown}")


@requirement("001-07")
def test_following_goes_on_when_the_node_was_killed_and_is_there_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with node_in(tmp_path) as first:
        job_id = submit(first, "gated", "one two", gate=gate)
        following = first.start("jobs", "follow", job_id)
        until_says(following, "one")
        first.signal(signal.SIGKILL)
        first.wait()
        gate.touch()
        with node_in(tmp_path, listen=first.url.removeprefix("http://")) as second:
            out, said = following.communicate(timeout=WAIT_TIMEOUT)
            assert (following.returncode, said) == (0, "")
            assert out.endswith("one two \nwords: 2\n")
            assert in_process(second, "jobs", "show", job_id)[1]["job"]["attempt"] == 2
