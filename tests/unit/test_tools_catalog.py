"""The built-in tools as agents: what they declare, how they are called, how they are switched off."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from a2a_fabric.core.errors import AgentNotFound, BadInput, CapabilityNotFound, Forbidden
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.tool import build
from a2a_fabric.tools.catalog import ALL_TOOLS, TOOLS_BY_ID
from a2a_fabric.tools.listing import LISTING_FILE, ToolListing, build_manifests, encode_listings, load_listings
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.tools.toolkit import CODES
from tests.marks import requirement
from tests.unit.tool_bench import bench, files_in

# The fields that existing clients of these tools read and send.
FIELDS = {
    "io.read_file": ("read", "path max_lines encoding", "content line_count truncated path size"),
    "io.write_file": ("write", "path content append", "bytes_written path append"),
    "io.list_directory": ("list", "path recursive pattern", "path entries count"),
    "io.search_files": ("search", "path pattern file_pattern", "matches count truncated"),
    "web.http_request": ("request", "url method headers body timeout", "status_code headers body elapsed_ms url"),
    "web.fetch_page": ("fetch", "url extract_text max_length", "title url links metadata text"),
    "web.parse_url": ("parse_url", "url", "scheme netloc path params query fragment hostname port"),
    "web.brave_search": ("search", "query recency_days max_results", "provider query results"),
    "math.calculate": ("eval", "expression precision", "result expression type"),
    "math.statistics": ("analyze", "data measures", "count sum mean median stddev min max"),
    "text.regex": ("match", "text pattern flags", "matches groups count pattern"),
    "text.transform": ("transform", "text operations", "result operations_applied"),
    "text.diff": ("compare", "original modified context_lines", "diff added removed unchanged total_changes"),
    "system.execute": ("exec", "command working_dir timeout env", "stdout stderr exit_code duration_ms command"),
    "system.env": ("get", "name", "name value exists variables count"),
    "system.datetime": ("now", "timezone format custom_format", "iso timestamp timezone formatted"),
    "data.json": ("parse", "json json_str query", "data valid type"),
    "data.csv": ("csv_parse", "csv delimiter headers", "rows headers row_count"),
    "data.validate": ("validate", "data schema", "valid errors"),
    "security.hash": ("hash", "data algorithm", "hash algorithm bytes"),
    "security.base64": ("base64_encode", "data decode", "result operation"),
    "encode.url": ("url_encode", "text decode", "result operation original_length result_length"),
    "docs.markdown": ("markdown_process", "markdown extract_toc", "html headings heading_count toc"),
}


@requirement("000-15")
def test_there_are_exactly_the_known_tools_with_the_known_fields() -> None:
    found = {
        tool.tool_id: (tool.capability, set(tool.input_schema["properties"]), set(tool.output_schema["properties"]))
        for tool in load_listings()
    }
    assert found == {
        tool_id: (capability, set(arguments.split()), set(result.split()))
        for tool_id, (capability, arguments, result) in FIELDS.items()
    }


def test_the_file_of_what_tools_say_is_written_from_their_definitions() -> None:
    written = encode_listings(tool.listing for tool in ALL_TOOLS)
    assert LISTING_FILE.read_bytes() == written, "run scripts/generate"


@pytest.mark.parametrize("tool", load_listings(), ids=lambda tool: tool.tool_id)
def test_schemas_are_plain_objects_without_references(tool: ToolListing) -> None:
    for schema in (tool.input_schema, tool.output_schema):
        jsonschema_rs.meta.validate(schema)
        assert schema["type"] == "object"
        assert "$ref" not in repr(schema)
    assert tool.input_schema["additionalProperties"] is False
    assert all("description" in part for part in tool.input_schema["properties"].values())


@requirement("000-15")
def test_the_id_of_a_tool_starts_with_its_category_except_for_encoding() -> None:
    for manifest in build_manifests(ToolSettings()):
        prefix = manifest.agent_id.partition(".")[0]
        assert manifest.category == {"encode": "encoding"}.get(prefix, prefix)


@requirement("000-17")
def test_every_tool_declares_whether_it_is_deterministic_and_what_it_touches() -> None:
    capabilities = {manifest.agent_id: manifest.capabilities[0] for manifest in build_manifests(ToolSettings())}
    effects = {name: each.side_effects for name, each in capabilities.items() if each.side_effects != "none"}
    assert effects == {
        "io.read_file": "reads",
        "io.write_file": "writes",
        "io.list_directory": "reads",
        "io.search_files": "reads",
        "web.http_request": "writes",
        "web.fetch_page": "reads",
        "web.brave_search": "reads",
        "system.execute": "writes",
        "system.env": "reads",
        "system.datetime": "reads",
    }
    for name, each in capabilities.items():
        assert each.deterministic is (name not in effects)
        assert each.idempotent is (each.side_effects != "writes")


@requirement("000-17")
@pytest.mark.parametrize(
    ("tool_id", "arguments"),
    [
        ("math.calculate", {"expression": "sqrt(2) ** 3"}),
        ("math.statistics", {"data": [1, 2.5, 4]}),
        ("text.regex", {"text": "a1b2", "pattern": r"\d"}),
        ("text.transform", {"text": " a ", "operations": [{"type": "trim"}]}),
        ("text.diff", {"original": "a\nb", "modified": "a\nc"}),
        ("data.json", {"json": '{"a": [1]}', "query": "$..a"}),
        ("data.csv", {"csv": "a,b\n1,2"}),
        ("data.validate", {"data": 1, "schema": {"type": "string"}}),
        ("security.hash", {"data": "x"}),
        ("security.base64", {"data": "x"}),
        ("encode.url", {"text": "a b"}),
        ("docs.markdown", {"markdown": "# a"}),
        ("web.parse_url", {"url": "http://a/b?c=d"}),
    ],
)
async def test_tools_that_declare_it_answer_the_same_twice(
    tmp_path: Path, tool_id: str, arguments: dict[str, Any]
) -> None:
    assert TOOLS_BY_ID[tool_id].deterministic
    async with bench(tmp_path) as tools:
        assert await tools(tool_id, **arguments) == await tools(tool_id, **arguments)
    assert files_in(tmp_path) == []


async def test_the_only_missing_string_is_taken_from_the_task(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        assert (await tools("math.calculate", task="6 * 7"))["result"] == 42


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "expression"),
        ({"expression": 1}, "$.expression"),
        ({"expression": "1", "precision": "2"}, "$.precision"),
        ({"expression": "1", "precision": -1}, "$.precision"),
        ({"expression": "1", "speed": 3}, "speed"),
    ],
)
async def test_wrong_arguments_are_bad_input_that_names_the_field(
    tmp_path: Path, arguments: dict[str, Any], named: str
) -> None:
    async with bench(tmp_path) as tools:
        with pytest.raises(BadInput, match=r"math\.calculate") as caught:
            await tools("math.calculate", **arguments)
    assert named in caught.value.message
    assert caught.value.details["tool_id"] == "math.calculate"


@pytest.mark.parametrize(
    ("tool_id", "capability"),
    [
        ("web.parse_url", "parse"),
        ("web.parse_url", "parse-url"),
        ("data.csv", "parse"),
        ("security.base64", "encode"),
        ("encode.url", "encode"),
        ("docs.markdown", "process"),
    ],
)
async def test_a_capability_answers_to_its_aliases(tmp_path: Path, tool_id: str, capability: str) -> None:
    argument = FIELDS[tool_id][1].split()[0]
    async with bench(tmp_path) as tools:
        assert await tools(tool_id, capability=capability, **{argument: "http://a"})
        with pytest.raises(CapabilityNotFound):
            await tools(tool_id, capability="nonsense", **{argument: "http://a"})


@pytest.mark.parametrize(
    ("tool_id", "setting"),
    [("io.write_file", "tools.io_write"), ("system.execute", "tools.execute"), ("web.brave_search", "brave_api_key")],
)
async def test_what_could_do_harm_is_off_by_default_and_says_how_to_switch_it_on(
    tmp_path: Path, tool_id: str, setting: str
) -> None:
    listed = next(each for each in build_manifests(ToolSettings()) if each.agent_id == tool_id)
    assert listed.metadata["enabled"] is False
    assert setting in listed.metadata["why"]
    arguments = {"path": "a", "content": "b"} if tool_id == "io.write_file" else {"command": "id", "query": "q"}
    async with bench(tmp_path) as tools:
        with pytest.raises(Forbidden, match=setting) as caught:
            await tools(tool_id, **arguments)
    assert caught.value.code == "AUTH_DENIED"
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("name", ["web.parse_url", "web"])
async def test_a_tool_or_a_whole_category_can_be_switched_off(tmp_path: Path, name: str) -> None:
    async with bench(tmp_path, disabled=(name,)) as tools:
        with pytest.raises(Forbidden, match=r"tools\.disabled"):
            await tools("web.parse_url", url="http://a")
        assert (await tools("math.calculate", expression="1"))["result"] == 1


def test_a_node_without_tools_lists_none() -> None:
    assert build_manifests(ToolSettings(enabled=False)) == []
    assert len(build_manifests(ToolSettings())) == len(FIELDS)


def test_only_running_programs_is_reserved_for_local_callers() -> None:
    tiers = {each.agent_id: each.trust_tier for each in build_manifests(ToolSettings())}
    assert [name for name, tier in tiers.items() if tier == "local"] == ["system.execute"]


async def test_the_runtime_is_built_from_its_context_and_describes_itself(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        web = OutboundClient()
        context = RuntimeContext(http=web, base=tmp_path, toolbox=tools.toolbox)
        manifest = build_manifests(ToolSettings())[0]
        runtime = build(manifest, context)
        assert await runtime.health() == "online"
        assert await runtime.describe() is manifest
        await runtime.aclose()
        await web.aclose()
        stranger = type(manifest)(agent_id="math.calculat", endpoint={})
        with pytest.raises(AgentNotFound, match=r"math\.calculate"):
            build(stranger, context)


def test_every_code_of_a_tool_has_an_error_code_of_the_node() -> None:
    assert set(CODES.values()) == {"BAD_INPUT", "AUTH_DENIED", "TIMEOUT", "UPSTREAM_ERROR"}


def test_the_reference_page_is_up_to_date() -> None:
    root = Path(__file__).parents[2]
    build_reference = runpy.run_path(str(root / "scripts" / "tools_reference.py"))["build_reference"]
    assert (root / "docs" / "tools.md").read_text() == build_reference(), "run: scripts/generate"
