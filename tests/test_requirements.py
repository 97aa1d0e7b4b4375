"""The bookkeeping of requirements: all 180 are listed, and no test claims one that is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REQUIREMENTS, Proofs

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent
EXPECTED = {"000": 28, "001": 58, "002": 21, "003": 41, "004": 32}


def marks_in(source: str, name: str) -> Iterator[tuple[int, str | None]]:
    """Line and id of each `requirement(...)` argument; None for what is not a literal string."""
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Call) and _called(node.func) == "requirement":
            for argument in node.args or [node]:
                literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                yield node.lineno, argument.value if literal and isinstance(argument, ast.Constant) else None  # type: ignore[misc]


def _called(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def test_all_180_requirements_are_listed_each_with_a_title() -> None:
    wanted = {f"{document}-{number:02d}" for document, count in EXPECTED.items() for number in range(1, count + 1)}
    assert set(REQUIREMENTS) == wanted
    assert len(REQUIREMENTS) == 180
    assert all(isinstance(title, str) and re.search(r"\w", title) for title in REQUIREMENTS.values())


def test_every_mark_in_the_tests_is_a_literal_id_of_the_list() -> None:
    wrong = [
        f"{path.relative_to(TESTS)}:{line}: {mark}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.name != "marks.py"
        for line, mark in marks_in(path.read_text("utf-8"), str(path))
        if mark not in REQUIREMENTS
    ]
    assert not wrong


def test_the_search_for_marks_sees_unknown_and_computed_ids() -> None:
    source = '@requirement("001-40", "9-9")\ndef a(): ...\n@marks.requirement(NAME)\ndef b(): ...\n'
    assert [mark for _, mark in marks_in(source, "x")] == ["001-40", "9-9", None]


def test_a_requirement_counts_only_when_all_its_tests_ran_and_passed() -> None:
    proofs = Proofs()
    for test, ids in {"good": ("a", "b"), "bad": ("b",), "skipped": ("c",), "never": ("d",)}.items():
        proofs.claim(test, ids)
    for when in ("setup", "call", "teardown"):
        proofs.note("good", when, "passed")
    proofs.note("bad", "call", "failed")
    proofs.note("skipped", "setup", "skipped")
    assert proofs.proven == ["a"]
    assert proofs.unproven == ["b", "c"]


def test_an_error_while_tearing_down_takes_the_proof_away() -> None:
    proofs = Proofs()
    proofs.claim("test", ("a",))
    proofs.note("test", "call", "passed")
    proofs.note("test", "teardown", "failed")
    assert proofs.proven == []


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    for name in ("conftest.py", "requirements.toml"):
        (pytester.path / name).write_text((TESTS / name).read_text("utf-8"), "utf-8")
    ini = "[pytest]\nmarkers = requirement(*ids): proven\naddopts = -p no:cacheprovider\n"
    pytester.makeini(f"{ini}pythonpath = {TESTS.parent}\n")
    return pytester


def test_a_run_ends_with_the_count_of_proven_requirements(project: pytest.Pytester) -> None:
    project.makepyfile(
        "import pytest\n"
        '@pytest.mark.requirement("001-40", "001-39")\ndef test_a(): pass\n'
        '@pytest.mark.requirement("001-39")\ndef test_b(): assert False\n'
    )
    result = project.runpytest_subprocess()
    result.stdout.fnmatch_lines(["requirements proven: 1 of 180", "marked, but not proven in this run: 001-39"])


def test_an_unknown_id_stops_the_run(project: pytest.Pytester) -> None:
    project.makepyfile('import pytest\n@pytest.mark.requirement("007-01")\ndef test_a(): pass\n')
    result = project.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no requirement is called*007-01*"])
