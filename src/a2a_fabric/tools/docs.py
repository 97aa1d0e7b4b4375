"""Tools: Markdown as HTML. HTML within the Markdown is shown as text, and links that run code are left out."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

from msgspec import Meta

from a2a_fabric.core.modules import load
from a2a_fabric.tools.spec import Arguments, Tool
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.work import Patience, in_thread

if TYPE_CHECKING:  # at run time it is imported by the first who needs it
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_NOT_IN_ANCHORS = re.compile(r"[^\w\s-]")
_BLANKS = re.compile(r"\s+")


class MarkdownArguments(Arguments, frozen=True, kw_only=True):
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


async def _markdown(given: MarkdownArguments, _: Toolbox) -> MarkdownResult:
    return await in_thread(render, given)


def render(_: Patience, given: MarkdownArguments) -> MarkdownResult:
    parser: MarkdownIt = load("markdown_it").MarkdownIt("commonmark", {"html": False})
    parser.enable(["table", "strikethrough"])
    tokens = parser.parse(given.markdown)
    headings = _anchored(tokens)
    html = parser.renderer.render(tokens, parser.options, {})
    result: MarkdownResult = {"html": html, "headings": headings, "heading_count": len(headings)}
    if given.extract_toc:
        result["toc"] = headings
    return result


def _anchored(tokens: list[Token]) -> list[Heading]:
    """Every heading, which also gets its anchor as id in the HTML; a repeated anchor gets a number."""
    headings: list[Heading] = []
    seen: Counter[str] = Counter()
    for at, token in enumerate(tokens):
        if token.type != "heading_open":
            continue
        title = _words(tokens[at + 1])
        name = _BLANKS.sub("-", _NOT_IN_ANCHORS.sub("", title).strip()).lower() or "section"
        anchor = f"{name}-{seen[name]}" if seen[name] else name
        seen[name] += 1
        token.attrSet("id", anchor)
        headings.append({"level": int(token.tag[1:]), "title": title, "anchor": anchor})
    return headings


def _words(inline: Token) -> str:
    return "".join(
        child.content if child.type in ("text", "code_inline", "image") else " " * child.type.endswith("break")
        for child in inline.children or []
    )


TOOLS = (
    Tool(
        tool_id="docs.markdown",
        capability="markdown_process",
        aliases=("process",),
        category="docs",
        display_name="Render Markdown",
        description="Markdown as HTML, with its headings and a table of contents.",
        arguments=MarkdownArguments,
        result=MarkdownResult,
        handler=_markdown,
    ),
)
