"""One word per idea, one idea per word: class names are unique, and the words that this project gave up stay away.

docs/glossary.md defines the few words that are the project's own. Everything else is called what an engineer who
knows HTTP, asyncio, MCP and A2A would call it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "a2a_fabric"
DOCS = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

# The shapes of a wire are named by its protocol, whatever the next protocol calls its own.
WIRE_MODULES = {"doors/rest/models.py", "runtimes/proto/messages.py"}
WIRE_PACKAGES = ("protocols/",)

# Metaphors that once named modules, classes and functions.
RETIRED_NAMES = set(
    re.findall(
        r"\w+",
        """waist berth moor shipyard admittance fleet passage checkpoint furnish seat seats shelf entrance visit
        doorkeeper introductions desk postoffice errand parking interview farewell farewells lookout crying crier bell
        bells keeper patience narration seldom purse mending gathering saying told asked asker wish wishes
        obituary rubbish house nowhere lean unasked""",
    )
)
# Participles say how something came about, not what the function does.
PARTICIPLES = set(
    re.findall(
        r"\w+",
        """told asked said given found known kept seen meant heard written shown taken brought spoken wanted named
        called answered followed finished explained described listed decoded encoded
        judging iterating blocking returning telling asking guarding""",
    )
)
# What a local variable or an argument must not be called: it is named after what it holds.
VAGUE_LOCALS = set(re.findall(r"\w+", "told said given meant heard brought spoken came"))
RETIRED_PROSE = re.compile(
    r"\b(whoever|none of ours|nobody|somebody|berths?|shipyard|the waist|errands?|standing orders?|farewells?"
    r"|doorkeeper|short way|long way|lean way|document 00\d|00[0-4]-\d\d)\b",
    re.IGNORECASE,
)
# Data, not prose: the words of a query that the search ignores.
STOP_WORDS_MODULE, STOP_WORDS_NAME = "core/search.py", "_STOP_WORDS"


def stop_word_lines(tree: ast.Module) -> range:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == STOP_WORDS_NAME:
            return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


@dataclass(frozen=True)
class Module:
    """What the tests look at, without its tree: all trees together would take too much memory."""

    path: str
    text: str
    public_classes: list[str]
    definitions: list[tuple[int, str, bool]]  # line, name, whether it is a function
    vague_locals: list[tuple[int, str]]
    stop_words: range


@cache
def modules() -> list[Module]:
    """Each is parsed once for all tests."""
    return [read_module(path) for path in sorted(SOURCE.rglob("*.py"))]


def read_module(path: Path) -> Module:
    text = path.read_text("utf-8")
    tree, name = ast.parse(text), path.relative_to(SOURCE).as_posix()
    return Module(
        name,
        text,
        [each.name for each in tree.body if isinstance(each, ast.ClassDef) and not each.name.startswith("_")],
        [(each.lineno, each.name, not isinstance(each, ast.ClassDef)) for each in definitions(tree)],
        [(line, local) for line, local in local_names(tree) if local in VAGUE_LOCALS],
        stop_word_lines(tree) if name == STOP_WORDS_MODULE else range(0),
    )


def split_name(name: str) -> set[str]:
    return {word for word in re.split(r"_+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()) if word}


def definitions(tree: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def local_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def is_wire(module: str) -> bool:
    return module in WIRE_MODULES or module.startswith(WIRE_PACKAGES)


def test_public_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for name in module.public_classes if not is_wire(module.path) else ():
            homes[name].append(module.path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_module_class_or_function_has_a_retired_name() -> None:
    wrong = [module.path for module in modules() if split_name(Path(module.path).stem) & RETIRED_NAMES]
    wrong += [
        f"{module.path}:{line} {name}"
        for module in modules()
        for line, name, _ in module.definitions
        if split_name(name) & RETIRED_NAMES
    ]
    assert wrong == []


def test_functions_are_verbs_and_modules_nouns_and_not_participles() -> None:
    wrong = [module.path for module in modules() if Path(module.path).stem in PARTICIPLES]
    wrong += [
        f"{module.path}:{line} {name}"
        for module in modules()
        for line, name, is_function in module.definitions
        if is_function and name.strip("_") in PARTICIPLES
    ]
    assert wrong == []


def test_locals_are_named_after_what_they_hold() -> None:
    wrong = [f"{module.path}:{line} {name}" for module in modules() for line, name in module.vague_locals]
    assert wrong == []


def test_prose_in_the_source_is_in_plain_words() -> None:
    wrong = [
        f"{module.path}:{number} {line.strip()}"
        for module in modules()
        for number, line in enumerate(module.text.splitlines(), 1)
        if RETIRED_PROSE.search(line) and number not in module.stop_words
    ]
    assert wrong == []


def test_pages_are_in_plain_words() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}:{number} {line.strip()}"
        for page in DOCS
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        if RETIRED_PROSE.search(line)
    ]
    assert wrong == []


def test_names_of_tests_are_in_plain_words() -> None:
    words = RETIRED_NAMES | {"nobody", "somebody", "whoever", "nursery"}
    words -= {
        "asked",
        "asker",
        "desk",
        "house",
        "lean",
        "nowhere",
        "patience",
        "told",
        "unasked",
    }  # tests use them as plain English
    files = [path for path in (ROOT / "tests").rglob("*") if "__pycache__" not in path.parts]
    wrong = [str(path) for path in files if split_name(path.stem) & words]
    for path in (ROOT / "tests").rglob("*.py"):
        names = definitions(ast.parse(path.read_text("utf-8")))
        wrong += [f"{path.name}:{n.lineno} {n.name}" for n in names if split_name(n.name) & words]
    assert wrong == []


def test_the_glossary_defines_the_words_that_are_the_project_s_own() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8").lower()
    words = (
        "door", "runtime", "step", "store", "agent", "capability", "call", "event", "result", "principal", "job",
        "registry", "catalog", "pool", "view", "era", "node",
    )  # fmt: skip
    assert [
        word for word in words if not re.search(rf"\*\*{word}\*\*|\| *`?{word}`? *\||^#+ {word}", glossary, re.M)
    ] == []
