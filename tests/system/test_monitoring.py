"""The files of deploy/prometheus and deploy/grafana: real Prometheus reads a real node and evaluates the alerts."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.fixtures.system_programs import find_program, free_ports, running_program
from tests.marks import requirement
from tests.system.node import WAIT_TIMEOUT, Node, running_node, until

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "fabric.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "fabric.json"
GONE = "agents:\n- {agent_id: gone, endpoint: {uri: 'http://127.0.0.1:9/'}, capabilities: [{name: act}]}\n"
_NAME = re.compile(r"\b(?:fabric|process)_[a-z_]+")
_SUFFIXES = re.compile(r"_(bucket|count|sum)$")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "agents.yaml").write_text(GONE)
    with running_node(folder) as running:
        assert running.run("call", "gone", "act").returncode == 1
        yield running


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


def dashboard_queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


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


def test_every_metric_of_the_dashboard_and_the_rules_exists(node: Node, metrics_key: str) -> None:
    offered = named_metrics(" ".join(re.findall(r"# TYPE (\S+)", scrape(node, metrics_key))))
    only_postgresql = {"fabric_store_connections"}
    used = named_metrics(" ".join([*dashboard_queries(), *rule_queries().values()]))
    assert used - offered - only_postgresql == set()
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
        for query in dashboard_queries():
            filled = query.replace("$__rate_interval", "1m").replace("$node", ".*")
            ask_prometheus(port, f"query?query={quote(filled)}")  # an invalid query is a 400, which raises
        found = ask_prometheus(port, "query?query=" + quote('fabric_calls_total{status="error"}'))["result"]
        assert [each["metric"]["target_id"] for each in found] == ["gone"]
