"""text.regex, text.transform and text.diff."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.tools.regex import RegexPattern, strip_comments
from a2a_fabric.tools.text import match_lines, render_unified, split_texts
from a2a_fabric.tools.toolkit import TimeLimit
from tests.profiles import examples
from tests.unit.tool_bench import bench


async def test_matches_groups_and_count(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("text.regex", text="é a1 b22 c", pattern=r"(\w)(\d+)?")
    assert answer["matches"] == ["a1", "b22", "c"]
    assert answer["groups"] == [["a", "1"], ["b", "22"], ["c", None]]
    assert (answer["count"], answer["pattern"]) == (3, r"(\w)(\d+)?")


async def test_named_groups_are_given_by_name(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("text.regex", text="k=v", pattern=r"(?P<key>\w)=(?P<value>\w)")
    assert answer["groups"] == [{"key": "k", "value": "v"}]


@pytest.mark.parametrize(
    ("flags", "pattern", "matches"),
    [
        ([], "b.", []),
        (["i"], "b", ["B"]),
        (["m"], "^B$", ["B"]),
        (["s"], "a.B", ["a\nB"]),
        (["i", "s"], "A.b", ["a\nB"]),
        (["x"], "a  # a letter\n | [ #B]", ["a", "B"]),
        (["x"], r"\ ", []),
    ],
)
async def test_flags(tmp_path: Path, flags: list[str], pattern: str, matches: list[str]) -> None:
    async with bench(tmp_path) as tools:
        assert (await tools("text.regex", text="a\nB", pattern=pattern, flags=flags))["matches"] == matches


pieces = ["a", "b", " ", "|", "\n", "\\ ", "\\#", "[ab #]", "[^]#]", "# (a\n", "(", ")", "#"]
verbose = st.lists(st.sampled_from(pieces), max_size=8).map("".join)


@settings(max_examples=examples(300))
@given(verbose, st.text("ab #", max_size=8))
def test_flag_x_means_what_python_means_by_it(pattern: str, text: str) -> None:
    try:
        expected = [match.span() for match in re.finditer(pattern, text, re.VERBOSE)][:1]
        found = [spans[0] for spans in RegexPattern(pattern, ["x"]).find_matches(text.encode(), TimeLimit(60))][:1]
    except (re.error, BadInput):
        return
    assert found == expected, strip_comments(pattern)


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)b", "(?<!a)b", "(", "[", "a{1001}", "*", r"\xzz"])
async def test_what_cannot_be_matched_in_linear_time_is_an_invalid_regex(tmp_path: Path, pattern: str) -> None:
    async with bench(tmp_path) as tools:
        error = await tools.fails("text.regex", "BAD_INPUT", "INVALID_REGEX", text="a", pattern=pattern)
    if "(?=" in pattern or r"\1" in pattern:
        assert "look-around and back-references" in error.message


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+b", "(.*)*x", "(?:a?){200}a{200}"])
async def test_evil_patterns_end_soon(tmp_path: Path, pattern: str) -> None:
    used = time.process_time()  # what others do on this machine does not count
    async with bench(tmp_path) as tools:
        await tools("text.regex", text="a" * 5_000 + "!", pattern=pattern)
    assert time.process_time() - used < 5


async def test_patterns_and_outputs_that_are_too_large_are_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        long = "a" * 1_000_000
        await tools.fails("text.regex", "BAD_INPUT", "MATCH_ERROR", text=long, pattern="(?:a?){500}a{500}b")
        await tools.fails("text.regex", "BAD_INPUT", "MATCH_ERROR", text=long, pattern="((((((.*))))))")


async def test_only_the_first_matches_are_shown_but_all_are_counted(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("text.regex", text="a" * 12_000, pattern="a")
    assert (answer["count"], len(answer["matches"]), len(answer["groups"])) == (12_000, 10_000, 10_000)


@pytest.mark.parametrize(
    ("operations", "result"),
    [
        ([{"type": "uppercase"}], "  ONE, TWO "),
        ([{"type": "lowercase"}], "  one, two "),
        ([{"type": "trim"}], "One, two"),
        ([{"type": "trim"}, {"type": "truncate", "length": 3}], "One..."),
        ([{"type": "trim"}, {"type": "truncate", "length": 8}], "One, two"),
        ([{"type": "replace", "old": "o", "new": "0"}], "  One, tw0 "),
        ([{"type": "replace", "old": " ", "new": "", "count": 1}], " One, two "),
        ([{"type": "trim"}, {"type": "split", "separator": ", "}], ["One", "two"]),
        ([{"type": "split", "separator": ","}, {"type": "join", "separator": ";"}], "  One; two "),
        ([], "  One, two "),
    ],
)
async def test_transformations(tmp_path: Path, operations: list[Any], result: Any) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("text.transform", text="  One, two ", operations=operations)
    assert answer == {"result": result, "operations_applied": len(operations)}


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([{"type": "join"}], "nothing to join"),
        ([{"type": "split"}, {"type": "trim"}], r"Operation 2 \(trim\).*join it first"),
        ([{"type": "replace", "new": "x"}], "'old'"),
        ([{"type": "split", "separator": ""}], "'separator'"),
        ([{"type": "replace", "old": "a", "new": "a" * 5000}] * 2, "longer than"),
        ([{"type": "split", "separator": "a"}, {"type": "join", "separator": "a" * 9000}], "longer than"),
    ],
)
async def test_transformations_that_make_no_sense_say_which_and_why(
    tmp_path: Path, operations: list[Any], message: str
) -> None:
    async with bench(tmp_path) as tools:
        error = await tools.fails(
            "text.transform", "BAD_INPUT", "TRANSFORM_ERROR", text="a" * 500, operations=operations
        )
        assert re.search(message, error.message)
        with pytest.raises(BadInput, match="operations"):
            await tools("text.transform", text="a", operations=[{"type": "explode"}])


async def test_a_diff_has_single_newlines_and_true_counts(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("text.diff", original="a\nb\nc\n", modified="a\nB\nc\nd\n")
    assert answer == {
        "diff": "--- original\n+++ modified\n@@ -1,3 +1,4 @@\n a\n-b\n+B\n c\n+d",
        "added": 2,
        "removed": 1,
        "unchanged": 2,
        "total_changes": 3,
    }


@pytest.mark.parametrize(
    ("original", "modified", "added", "removed"),
    [
        ("a\nb", "a\nb", 0, 0),
        ("", "", 0, 0),
        ("", "a\n", 1, 0),
        ("a\n", "", 0, 1),
        ("a\nb", "a\nb\nc", 1, 0),
        ("a", "a\n", 1, 0),
        ("\n", "", 0, 1),
        ("a\u2028b", "a\u2028c", 1, 1),
    ],
)
async def test_counts_at_the_edges(tmp_path: Path, original: str, modified: str, added: int, removed: int) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("text.diff", original=original, modified=modified)
    assert (answer["added"], answer["removed"]) == (added, removed)
    assert bool(answer["diff"]) is bool(added + removed)


texts = st.lists(st.sampled_from("abc"), max_size=12)


@settings(max_examples=examples(300), deadline=None)
@given(texts, texts)
def test_the_matching_lines_of_two_texts_are_equal_and_in_order(a: list[str], b: list[str]) -> None:
    opcodes = match_lines(a, b, TimeLimit(5)).get_opcodes()
    assert [line for tag, i1, i2, j1, j2 in opcodes for line in (a[i1:i2] if tag == "equal" else b[j1:j2])] == b
    assert [line for _, i1, i2, _, _ in opcodes for line in a[i1:i2]] == a


@pytest.mark.skipif(not shutil.which("patch"), reason="needs the program patch: apt install patch")
@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=30),
    st.lists(st.sampled_from("abcd"), min_size=1),
    st.integers(0, 3),
)
def test_patch_understands_the_diff(a: list[str], b: list[str], context: int) -> None:
    original, modified = "".join(f"{line}\n" for line in a), "".join(f"{line}\n" for line in b)
    before, after = split_texts(original, modified)
    diff = render_unified(before, after, match_lines(before, after, TimeLimit(5)), context)
    if diff:
        assert _patched(original, diff + "\n") == modified


def _patched(original: str, diff: str) -> str:
    with tempfile.NamedTemporaryFile("w") as source:
        source.write(original)
        source.flush()
        command = ["patch", "--quiet", "--force", "--no-backup-if-mismatch", "-o", "-", source.name]
        return subprocess.run(command, input=diff, capture_output=True, text=True, timeout=10, check=True).stdout


async def test_large_texts_without_anything_in_common_end_soon(tmp_path: Path) -> None:
    started = time.process_time()
    async with bench(tmp_path) as tools:
        original = "\n".join(f"a{n}" for n in range(20_000))
        modified = "\n".join(f"b{n}" for n in range(20_000))
        answer = await tools("text.diff", original=original, modified=modified)
    assert (answer["added"], answer["removed"], answer["unchanged"]) == (20_000, 20_000, 0)
    assert time.process_time() - started < 10


async def test_large_texts_of_few_different_lines_end_soon(tmp_path: Path) -> None:
    started = time.process_time()
    async with bench(tmp_path) as tools:
        original = "\n".join(str(n * n % 100) for n in range(100_000))
        modified = "\n".join(str(n * n % 97) for n in range(100_000))
        answer = await tools("text.diff", original=original, modified=modified)
    assert answer["removed"] + answer["unchanged"] == answer["added"] + answer["unchanged"] == 100_000
    assert time.process_time() - started < 10


def test_a_comparison_stops_when_its_time_is_up() -> None:
    ended = TimeLimit(5)
    ended.end()
    with pytest.raises(FabricError, match="gave up"):
        match_lines(["a"] * 10, ["b", "a"], ended)
