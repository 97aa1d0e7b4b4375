"""The arrows between packages point one way, and no import hides inside a function.

Every package or module of the top level has its own row: a new one fails here
until somebody decides what it may know.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.marks import requirement

PACKAGE = "a2a_fabric"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

ANYTHING = "*"

# Who may import what, besides itself, the standard library, and `version` (a constant).
ARROWS: dict[str, set[str]] = {
    "__init__": {"agent", "app", "client", "core", "doors.context", "runtimes.context"},
    "__main__": {"cli"},
    "admin": {
        "config",
        "core",
        "gateway",
        "identity.shared_keys",
        "importing",
        "jobs",
        "messages",
        "node.exposure",
        "node.settings_reload",
        "operations",
        "outbound",
        "plugins",
        "probing",
        "registry",
        "runtimes.context",
        "telemetry.metrics",
    },
    "agent": {"authoring", "core"},
    "app": {ANYTHING},
    "authoring": {"core"},
    "cli": {ANYTHING},
    "client": {"core", "identity.keyfile", "outbound"},
    "config": {
        "core",
        "federation.settings",
        "identity.settings",
        "jobs.settings",
        "mesh.settings",
        "messages.settings",
        "plugins",
        "registry.health",
        "registry.registration_policy",
        "stores.address",
        "telemetry.settings",
        "tools.settings",
        "yamlfile",
    },
    "console": {"admin.keys", "config", "core", "doors.api_docs", "doors.edge", "identity", "outbound.client"},
    "coordination": {"core", "jobs", "messages", "registry"},
    "core": set(),
    "demo": {"agent", "authoring", "core", "registry"},
    "doors": {"protocols", "core", "gateway", "identity", "jobs", "messages", "operations", "outbound"},
    "federation": {"core", "importing.jsonc", "importing.secrets", "outbound", "schemas", "yamlfile"},
    "gateway": {"core", "registry"},
    "guards": {"core", "outbound"},
    "graphs": {"core", "jobs"},
    "identity": {"core", "outbound"},
    "importing": {"core", "yamlfile"},
    "jobs": {"core", "outbound"},
    "logins": {"core", "identity.keyfile", "outbound"},
    "mcp_clients": {"core", "importing.jsonc", "importing.yaml_text", "yamlfile"},
    "mesh": {"core", "doors", "identity", "nats", "outbound", "protocols", "registry", "telemetry"},
    "messages": {"core", "jobs"},
    "nats": {"core"},
    "operations": {"coordination", "core", "gateway", "graphs", "jobs", "logins", "messages", "registry"},
    "node": {
        "agent",
        "config",
        "console",
        "coordination",
        "core",
        "doors.context",
        "doors.api_docs",
        "federation",
        "gateway",
        "identity",
        "jobs",
        "logins",
        "mesh",
        "messages",
        "operations",
        "outbound",
        "plugins",
        "probing",
        "protocols",
        "registry",
        "runtimes.context",
        "runtimes.dependencies",
        "runtimes.per_principal",
        "semantic",
        "steps",
        "stores.address",
        "telemetry",
        "tools",
        "web",
    },
    "outbound": {"core"},
    "plugins": {"core"},
    "probing": {"protocols", "core", "outbound", "runtimes.programs"},
    "protocols": {"core"},
    "registry": {"core", "schemas", "yamlfile"},
    "runtimes": {"protocols", "core", "outbound", "schemas"},
    "schemas": {"core"},
    "semantic": {"core", "federation.settings"},
    "steps": {"core", "schemas"},
    "stores": {"core", "nats"},
    "telemetry": {"core"},
    "testing": {"core"},
    "tools": {"core", "outbound", "schemas"},
    "version": set(),
    "web": {"core", "doors", "identity"},
    "yamlfile": {"core"},
}

# Single modules that may know more than their package.
EXCEPTIONS: dict[str, set[str]] = {
    "demo.lab": {"app", "config"},
    "demo.primes": {"runtimes.proto"},
    "runtimes.context": {"tools.spec"},
    "runtimes.python": {"agent", "authoring"},
    "runtimes.tool": {"tools"},
    "testing.door_contract": {"agent", "app", "config", "plugins"},
}

CORE_MAY_USE = {"msgspec"}


def modules(source: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        yield name, ast.parse(path.read_text("utf-8"), str(path))


def imports_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported; a relative import keeps its dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def crossings(source: Path) -> list[str]:
    """Every import that goes against the arrows."""
    wrong = []
    for name, tree in modules(source):
        part = name.partition(".")[0]
        if part not in ARROWS:
            wrong.append(f"{name}: '{part}' has no row in ARROWS")
            continue
        allowed = ARROWS[part] | EXCEPTIONS.get(name, set()) | {part, "version"}
        wrong += [f"{name}:{line}: {what}" for line, what in imports_of(tree) if not _is_allowed(part, what, allowed)]
    return wrong


def _is_allowed(part: str, what: str, allowed: set[str]) -> bool:
    if what.startswith("."):
        return False  # full names only, so that this test can read them
    top, _, rest = what.partition(".")
    if top != PACKAGE:
        return part != "core" or top in CORE_MAY_USE or top in sys.stdlib_module_names
    return ANYTHING in allowed or any(f"{rest}.".startswith(f"{each}.") for each in allowed)


def hidden_imports(source: Path) -> list[str]:
    wrong = []
    for name, tree in modules(source):
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                body = (node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))
                wrong += [f"{name}:{node.lineno}" for node in body]
    return sorted(set(wrong))


@requirement("001-52")
def test_imports_follow_the_arrows() -> None:
    assert crossings(SOURCE) == []


def test_no_import_hides_inside_a_function() -> None:
    assert hidden_imports(SOURCE) == []


def test_no_row_outlives_its_package() -> None:
    here = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(ARROWS) <= here
    assert {name for name, _ in modules(SOURCE)} >= set(EXCEPTIONS)


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def test_these_tests_can_fail(tmp_path: Path) -> None:
    bad = _write(
        tmp_path,
        {
            "core/a.py": "import starlette.routing\n",
            "core/b.py": "from a2a_fabric.steps.route import Route\n",
            "doors/x/door.py": "import a2a_fabric.runtimes.http.runtime\n",
            "doors/y.py": "from a2a_fabric import runtimes\n",
            "runtimes/http.py": "from a2a_fabric.tools.spec import Tool\n",
            "runtimes/tool.py": "from a2a_fabric.tools.spec import Tool\n",
            "steps/a.py": "from . import b\n",
            "config.py": "from a2a_fabric.tools.settings import ToolSettings\nfrom a2a_fabric.tools.web import fetch\n",
            "novelty/__init__.py": "",
        },
    )
    assert crossings(bad) == [
        "config:2: a2a_fabric.tools.web.fetch",
        "core.a:1: starlette.routing",
        "core.b:1: a2a_fabric.steps.route.Route",
        "doors.x.door:1: a2a_fabric.runtimes.http.runtime",
        "doors.y:1: a2a_fabric.runtimes",
        "novelty: 'novelty' has no row in ARROWS",
        "runtimes.http:1: a2a_fabric.tools.spec.Tool",
        "steps.a:1: ..b",
    ]


def test_the_search_for_hidden_imports_can_fail(tmp_path: Path) -> None:
    bad = _write(tmp_path, {"core/a.py": "async def f():\n    if 1:\n        import os\n\nclass A:\n    import json\n"})
    assert hidden_imports(bad) == ["core.a:3"]
