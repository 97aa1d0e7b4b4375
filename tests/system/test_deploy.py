"""The files of deploy/: the chart is linted by Helm, units are verified by systemd, the others checked by piece."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from a2a_fabric.config import Config, load_config
from a2a_fabric.version import __version__
from tests.fixtures.helm import run_helm
from tests.system.node import running_node

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "a2a-fabric"
_WARNING = 2  # of Helm's severities: 1 info, 2 warning, 3 error


def lint(tmp_path: Path, values: dict[str, Any]) -> list[tuple[int, str]]:
    """Severity and file of what Helm finds in a copy of the chart with these values."""
    copy = tmp_path / CHART.name
    shutil.copytree(CHART, copy)
    merged = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, value in values.items():
        merged[name] = {**merged[name], **value} if isinstance(value, dict) else value
    (copy / "values.yaml").write_text(yaml.safe_dump(merged))
    found = run_helm("lint", copy)
    return [(each["Severity"], each["Path"]) for each in found["Messages"]]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"autoscaling": {"enabled": True}},
        {"podDisruptionBudget": {"enabled": False}, "serviceAccount": {"create": False}},
        {"image": {"digest": "sha256:" + "0" * 64}, "imagePullSecrets": [{"name": "registry"}]},
        {"agents": [{"agent_id": "percy", "endpoint": {"uri": "http://percy"}}], "nodeSelector": {"disk": "fast"}},
    ],
)
def test_helm_has_nothing_to_say_about_the_chart(tmp_path: Path, values: dict[str, Any]) -> None:
    assert [each for each in lint(tmp_path, values) if each[0] >= _WARNING] == []


@pytest.mark.parametrize(
    "values",
    [
        {"replicaCount": "two"},
        {"config": {"auth": {"psk": "a-secret-in-the-values"}}},
        {"config": {"store": "postgresql://fabric:secret@db/fabric"}},
        {"config": {"listen": "127.0.0.1:1"}},
        {"image": {"digest": "latest"}},
        {"secret": {"name": ""}},
        {"replicas": 3},
    ],
)
def test_the_schema_of_the_chart_refuses_wrong_values_and_secrets(tmp_path: Path, values: dict[str, Any]) -> None:
    severities = [severity for severity, _ in lint(tmp_path, values)]
    assert max(severities) > _WARNING


def test_helm_would_notice_a_broken_template(tmp_path: Path) -> None:
    copy = tmp_path / CHART.name
    shutil.copytree(CHART, copy)
    (copy / "templates" / "service.yaml").write_text("kind: Service\nname: {{ .Values.nothing.there }}\n")
    assert max(each["Severity"] for each in run_helm("lint", copy)["Messages"]) > _WARNING


def test_the_chart_has_the_version_of_the_program_and_settings_that_a_node_accepts(tmp_path: Path) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    config = {"listen": "0.0.0.0:8000", "agents": ["agents.yaml"], **values["config"]}
    (tmp_path / "fabric.yaml").write_text(yaml.safe_dump(config))
    loaded = load_config(tmp_path / "fabric.yaml", {"FABRIC_PSK": "a-long-key", "FABRIC_STORE": "memory:"})
    assert isinstance(loaded, Config)
    limits = loaded.limits
    assert values["terminationGracePeriodSeconds"] > (limits.not_ready_seconds or 0) + limits.drain_seconds


@pytest.mark.parametrize("folder", ["container", "compose"])
def test_the_settings_of_the_image_and_of_compose_are_accepted(folder: str) -> None:
    environ = {"FABRIC_PSK": "a-long-key", "FABRIC_STORE": "postgresql://fabric@postgres/fabric"}
    assert load_config(DEPLOY / folder / "fabric.yaml", environ).listen == "0.0.0.0:8000"


def test_every_file_and_variable_of_the_compose_file_exists() -> None:
    text = (DEPLOY / "compose" / "compose.yaml").read_text()
    compose = yaml.safe_load(text)
    services = compose["services"]
    assert set(services) == {"node", "postgres", "prometheus", "grafana"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            is_file = source.startswith(".")
            is_there = (DEPLOY / "compose" / source).exists() if is_file else source in compose["volumes"]
            assert is_there, volume
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        for other in service.get("depends_on", ()):
            assert other in services
    assert (DEPLOY / "compose" / services["node"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["node"]["build"]["dockerfile"]).exists()
    needed = set(re.findall(r"\$\{(\w+):\?", text))
    offered = set(re.findall(r"^(\w+)=", (DEPLOY / "compose" / ".env.example").read_text(), re.M))
    assert needed == offered


def test_the_image_is_built_in_stages_and_does_not_run_as_root() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    instructions = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines() if line[:1].isupper()]
    assert [words[1] for words in instructions if words[0] == "FROM"] == ["${BASE} AS build", "${BASE}"]
    last_user = [words[1] for words in instructions if words[0] == "USER"][-1]
    assert last_user == "10001:10001"
    assert any(words[0] == "HEALTHCHECK" for words in instructions)
    copied = [words[1] for words in instructions if words[0] == "COPY" and "--from" not in words[1]]
    sources = [word for line in copied for word in line.split()[:-1] if not word.startswith("--")]
    assert [each for each in sources if not list(ROOT.glob(each)) and not each.startswith("dist/")] == []
    ignored = (ROOT / ".dockerignore").read_text()
    assert all(each.split("/")[0] in ignored for each in sources)


def test_the_healthcheck_of_the_image_tells_a_ready_node_from_none(tmp_path: Path) -> None:
    script = DEPLOY / "container" / "healthcheck.py"
    (tmp_path / "agents.yaml").write_text("agents: []\n")
    with running_node(tmp_path) as node:
        words = [str(ROOT / ".venv" / "bin" / "python"), str(script)]
        url = f"{node.url}/readyz"
        done = subprocess.run(words, env={"FABRIC_HEALTH_URL": url}, capture_output=True, text=True, check=False)
        assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "ready")
        url = "http://127.0.0.1:9/readyz"
        done = subprocess.run(words, env={"FABRIC_HEALTH_URL": url}, capture_output=True, text=True, check=False)
        assert done.returncode == 1


@pytest.mark.parametrize("folder", ["deploy/systemd", "src/a2a_fabric/cli/templates"])
def test_systemd_accepts_the_units_and_finds_them_hardened(tmp_path: Path, folder: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    filled = {"/opt/a2a-fabric/bin/a2a-fabric": "/bin/true", "$$": "$", "$program": "/bin/true", "$user": "daemon",
              "$folder": str(tmp_path), "$quoted_folder": str(tmp_path)}  # fmt: skip
    text = (ROOT / folder / "a2a-fabric.service").read_text()
    for name, value in filled.items():
        text = text.replace(name, value)
    path = tmp_path / "a2a-fabric.service"
    path.write_text(text)
    done = subprocess.run([analyze, "verify", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    words = [analyze, "security", "--offline=true", "--no-pager", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    match = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert match is not None, done.stdout + done.stderr
    assert float(match[1]) < 3
