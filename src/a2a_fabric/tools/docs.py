"""The docs tool: Markdown to HTML. HTML within the Markdown is escaped, and links that run code are left out."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

from msgspec import Meta

from a2a_fabric.core.ports import load_module
from a2a_fabric.tools.computation import compute
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit

if TYPE_CHECKING:  # at run time the first call imports it
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


_ANCHOR_PUNCTUATION = re.compile(r"[^\w\s-]")
_BLANKS = re.compile(r"\s+")


class MarkdownArguments(ToolArguments, frozen=True, kw_only=True):
    markdown: Annotated[str, Meta(max_length=100_000, description="CommonMark, with tables and strikethrough.")]
    extract_toc: Annotated[bool, Meta(description="Whether a table of contents is wanted.")] = True


class Heading(TypedDict):
    level: int
    title: str
    anchor: str


class MarkdownResult(TypedDict):
    html: str
    headings: list[Heading]
    heading_count: int
    toc: NotRequired[list[Heading]]


async def _render_markdown(arguments: MarkdownArguments, toolbox: Toolbox) -> MarkdownResult:
    return await compute(toolbox.computations, len(arguments.markdown) * 10, render, arguments)


def render(_: TimeLimit, arguments: MarkdownArguments) -> MarkdownResult:
    parser: MarkdownIt = load_module("markdown_it").MarkdownIt("commonmark", {"html": False})
    parser.enable(["table", "strikethrough"])
    tokens = parser.parse(arguments.markdown)
    headings = _add_anchors(tokens)
    html = parser.renderer.render(tokens, parser.options, {})
    result: MarkdownResult = {"html": html, "headings": headings, "heading_count": len(headings)}
    if arguments.extract_toc:
        result["toc"] = headings
    return result


def _add_anchors(tokens: list[Token]) -> list[Heading]:
    """List the headings, and set the anchor of each as its id in the HTML; a repeated anchor gets a number."""
    headings: list[Heading] = []
    anchor_counts: Counter[str] = Counter()
    for index, token in enumerate(tokens):
        if token.type != "heading_open":
            continue
        title = _join_text(tokens[index + 1])
        name = _BLANKS.sub("-", _ANCHOR_PUNCTUATION.sub("", title).strip()).lower() or "section"
        anchor = f"{name}-{anchor_counts[name]}" if anchor_counts[name] else name
        anchor_counts[name] += 1
        token.attrSet("id", anchor)
        headings.append({"level": int(token.tag[1:]), "title": title, "anchor": anchor})
    return headings


def _join_text(inline: Token) -> str:
    return "".join(
        child.content if child.type in ("text", "code_inline", "image") else " " * child.type.endswith("break")
        for child in inline.children or []
    )


TOOLS = (
    BuiltinTool(
        tool_id="docs.markdown",
        capability="markdown_process",
        aliases=("process",),
        category="docs",
        display_name="Render Markdown",
        description="Markdown as HTML, with its headings and a table of contents.",
        arguments=MarkdownArguments,
        result=MarkdownResult,
        handler=_render_markdown,
    ),
)
