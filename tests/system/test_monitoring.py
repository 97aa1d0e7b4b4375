"""The files of deploy/prometheus and deploy/grafana: real Prometheus reads a real node and evaluates the alerts."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.fixtures import postgres
from tests.fixtures.system_programs import find_program, free_ports, running_program
from tests.marks import requirement
from tests.system.node import WAIT_TIMEOUT, Node, running_node, until

PSK = "the-key-of-this-node"
DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "fabric.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "fabric.json"
AGENTS = """agents:
- {agent_id: gone, endpoint: {uri: 'http://127.0.0.1:9/'}, capabilities: [{name: act}]}
- {agent_id: broken, runtime: http, endpoint: {uri: 'http://127.0.0.1:PORT/'}, capabilities: [{name: act}],
   fallbacks: [well]}
- {agent_id: well, runtime: python, endpoint: {uri: 'python:well_agent:well'}, capabilities: [{name: act}]}
"""
WELL = """from a2a_fabric import Agent
well = Agent("well")

@well.capability
async def act(task: str) -> str:
    return task
"""
# Nothing to show on a node whose store and agents were never in trouble.
_MAY_BE_EMPTY = ("Errors of the store",)
_NAME = re.compile(r"\b(?:fabric|process)_[a-z_]+")
_SUFFIXES = re.compile(r"_(bucket|count|sum)$")


class BrokenAgent(BaseHTTPRequestHandler):
    """Probes find it well; calls fail, so that the next agent is asked."""

    def do_GET(self) -> None:
        self._reply(200, b'{"ok": true, "status": "online"}')

    def do_POST(self) -> None:
        self._reply(500, b"{}")

    def _reply(self, status: int, body: bytes) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The test says enough."""


@pytest.fixture(scope="module")
def broken_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), BrokenAgent) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, broken_port: int) -> Iterator[Node]:
    """As `deploy/compose` starts it: the same settings and variables, and PostgreSQL."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "agents.yaml").write_text(AGENTS.replace("PORT", str(broken_port)))
    (folder / "well_agent.py").write_text(WELL)
    (folder / "fabric.yaml").write_text((DEPLOY / "compose" / "fabric.yaml").read_text())
    (folder / ".env").write_text(f"FABRIC_PSK={PSK}\nFABRIC_STORE={postgres.shared().database()}\n")
    (folder / "home").mkdir(mode=0o700)
    key = folder / "home" / "key"  # with which the commands of the test are let in
    key.touch(0o600)
    key.write_text(PSK)
    with running_node(folder, PYTHONPATH=str(folder)) as running:
        yield running


def use(node: Node) -> None:
    """A little of everything that the dashboard shows."""
    assert node.run("call", "gone", "act").returncode == 1
    for agent in ("well", "broken"):
        assert node.run("call", agent, "act", "x").returncode == 0
    assert node.run("call", "well", "act", "x", "--async").returncode == 0
    assert node.run("messages", "send", "well", '{"note": "x"}').returncode == 0
    assert node.run("agents", "--token", "wrong").returncode == 1


@pytest.fixture(scope="module")
def metrics_key(node: Node) -> str:
    """A key that may read metrics and nothing else, once the node has heard of it."""
    key = str(node.json("keys", "create", "prometheus", "--scope", "metrics")["key"])

    def look() -> str | None:
        try:
            return key if scrape(node, key) else None
        except HTTPError as error:
            error.close()
            return None

    return until(look, "the node to accept the new key")


def scrape(node: Node, key: str) -> str:
    request = Request(f"{node.url}/metrics", headers={"Authorization": f"Bearer {key}"})  # noqa: S310  # our own node
    with urlopen(request, timeout=WAIT_TIMEOUT) as reply:  # noqa: S310
        return str(reply.read().decode())


def named_metrics(text: str) -> set[str]:
    return {_SUFFIXES.sub("", name) for name in _NAME.findall(text)}


def dashboard_queries() -> list[tuple[str, str]]:
    """The title of the panel, and the query."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]


def rule_queries() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


@requirement("001-48")
def test_promtool_is_content_with_the_metrics_of_a_node(node: Node, metrics_key: str) -> None:
    promtool = find_program("promtool")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=scrape(node, metrics_key), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_promtool_is_content_with_the_rules_and_the_configuration(tmp_path: Path) -> None:
    promtool = find_program("promtool")
    done = subprocess.run([promtool, "check", "rules", RULES], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    (tmp_path / "key").write_text("k")
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/fabric_metrics_key", "key"))
    (tmp_path / RULES.name).write_text(RULES.read_text())
    words = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(words, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def quick_share(metric: str, bound: str, beyond: str) -> tuple[dict[str, str], dict[str, str]]:
    """Series of a histogram: all observations beyond a bound; and all below it."""
    series = {f'{metric}{{le="{beyond}"}}': "0+60x60", f'{metric}{{le="+Inf"}}': "0+60x60"}
    below = f'{metric}{{le="{bound}"}}'
    return {below: "0x60", **series}, {below: "0+60x60", **series}


# Series, one value a minute, with which an alert fires after a while, and similar ones with which it does not.
ALERT_CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "FabricNodeDown": ({'up{job="fabric"}': "0x60"}, {'up{job="fabric"}': "1x60"}),
    "FabricRestarts": (
        {'process_start_time_seconds{job="fabric"}': "0+1x60"},
        {'process_start_time_seconds{job="fabric"}': "1x30 2x30"},
    ),
    "FabricStoreDown": ({"fabric_store_up": "0x60"}, {"fabric_store_up": "1x60"}),
    "FabricStoreErrors": (
        {'fabric_store_errors_total{error_code="STORE_UNAVAILABLE"}': "0+60x60"},
        {'fabric_store_errors_total{error_code="STORE_UNAVAILABLE"}': "0+1x60"},
    ),
    "FabricStoreSlow": quick_share("fabric_store_duration_seconds_bucket", "1", "5"),
    "FabricCallsFail": (
        {'fabric_calls_total{status="error"}': "0+30x60", 'fabric_calls_total{status="success"}': "0+30x60"},
        {'fabric_calls_total{status="error"}': "0+1x60", 'fabric_calls_total{status="success"}': "0+60x60"},
    ),
    "FabricCallsSlow": quick_share("fabric_call_duration_seconds_bucket", "60", "300"),
    "FabricAgentsOffline": (
        {'fabric_registry_agents{status="offline"}': "1x60"},
        {'fabric_registry_agents{status="offline"}': "0x60"},
    ),
    "FabricBreakerOpen": (
        {'fabric_breaker_open{agent_id="a"}': "1x60"},
        {'fabric_breaker_open{agent_id="a"}': "1x5 _x55"},  # it has closed again
    ),
    "FabricPoolWithoutReplicas": (
        {'fabric_replicas{pool="p",status="offline"}': "2x60", 'fabric_replicas{pool="p",status="online"}': "0x60"},
        {'fabric_replicas{pool="p",status="offline"}': "1x60", 'fabric_replicas{pool="p",status="online"}': "1x60"},
    ),
    "FabricQueueOld": ({"fabric_job_queue_age_seconds": "600x60"}, {"fabric_job_queue_age_seconds": "10x60"}),
    "FabricLimitNearlyUsed": (
        {'fabric_limit_used{limit="calls"}': "95x60", 'fabric_limit_max{limit="calls"}': "100x60"},
        {'fabric_limit_used{limit="calls"}': "50x60", 'fabric_limit_max{limit="calls"}': "100x60"},
    ),
    "FabricFilesNearlyUsed": (
        {'process_open_fds{job="fabric"}': "95x60", 'process_max_fds{job="fabric"}': "100x60"},
        {'process_open_fds{job="fabric"}': "50x60", 'process_max_fds{job="fabric"}': "100x60"},
    ),
    "FabricEventLoopBlocked": quick_share("fabric_event_loop_lag_seconds_bucket", "0.5", "1"),
    "FabricCredentialsRefused": (
        {'fabric_auth_attempts_total{status="denied"}': "0+120x60"},
        {'fabric_auth_attempts_total{status="denied"}': "0+6x60"},
    ),
}


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert set(ALERT_CASES) == set(rule_queries())
    cases = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": "50m",
                    **({"exp_samples": [{"labels": "{}", "value": 1}]} if is_firing else {}),
                }
            ],
        }
        for alert, both in ALERT_CASES.items()
        for series, is_firing in zip(both, (True, False), strict=True)
    ]
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    words = [find_program("promtool"), "test", "rules", str(tmp_path / "cases.yml")]
    done = subprocess.run(words, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_of_the_dashboard_and_the_rules_exists(node: Node, metrics_key: str) -> None:
    offered = named_metrics(" ".join(re.findall(r"# TYPE (\S+)", scrape(node, metrics_key))))
    used = named_metrics(" ".join([*(query for _, query in dashboard_queries()), *rule_queries().values()]))
    assert used - offered == set()
    assert len(used) > 20


def test_every_alert_is_explained() -> None:
    page = (DEPLOY.parent / "docs" / "operating.md").read_text("utf-8")
    assert [alert for alert in rule_queries() if f"`{alert}`" not in page] == []


def ask_prometheus(port: int, path: str) -> Any:
    with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=WAIT_TIMEOUT) as reply:
        return json.loads(reply.read())["data"]


def test_prometheus_scrapes_a_node_evaluates_the_rules_and_answers_the_dashboard(
    node: Node, metrics_key: str, tmp_path: Path
) -> None:
    prometheus = find_program("prometheus")
    (port,) = free_ports(1)
    (tmp_path / "key").write_text(metrics_key)
    (tmp_path / RULES.name).write_text(re.sub(r"\bfor: \w+", "for: 0s", RULES.read_text()))
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    text = text.replace("/run/secrets/fabric_metrics_key", "key").replace("15s", "1s")
    text = text.replace("node:8000", node.url.removeprefix("http://"))
    (tmp_path / "prometheus.yml").write_text(text)
    options = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={tmp_path}/data"]
    words = [prometheus, "--config.file=prometheus.yml", *options]
    with running_program(*words, port=port, folder=tmp_path):

        def look() -> Any:
            try:
                alerts = ask_prometheus(port, "alerts")["alerts"]
            except HTTPError as error:  # it listens before it is ready
                error.close()
                return None
            return next((each for each in alerts if each["labels"]["alertname"] == "FabricAgentsOffline"), None)

        alert = until(look, "the alert about the agent that is offline")
        assert alert["state"] == "firing"
        assert "1 agents of 127.0.0.1" in alert["annotations"]["summary"]
        (target,) = ask_prometheus(port, "targets?state=active")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        rules = [rule for group in ask_prometheus(port, "rules")["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == set(rule_queries())
        assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
        firing = {each["labels"]["alertname"] for each in ask_prometheus(port, "alerts")["alerts"]}
        assert "FabricNodeDown" not in firing
        assert "FabricStoreDown" not in firing

        def find_empty() -> set[str]:
            """Panels without a value."""
            use(node)
            empty: set[str] = set()
            for title, query in dashboard_queries():
                filled = query.replace("$__rate_interval", "1m").replace("$node", ".*")
                if not ask_prometheus(port, f"query?query={quote(filled)}")["result"]:  # an invalid query raises
                    empty.add(f"{title}: {query}")
            return {each for each in empty if not each.startswith(_MAY_BE_EMPTY)}

        until(lambda: not find_empty(), f"a value in each panel; there is none in {find_empty()}")
        found = ask_prometheus(port, "query?query=" + quote('fabric_calls_total{status="error"}'))["result"]
        assert "gone" in [each["metric"]["target_id"] for each in found]
