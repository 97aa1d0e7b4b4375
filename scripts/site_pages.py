"""Adds the pages of the repository's root to the documentation site, and shows the files that pages include."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parent.parent
_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: Any) -> Files:
    for source, name in _PAGES.items():
        text = re.sub(r'(?<=[("])docs/', "", (_ROOT / source).read_text("utf-8"))
        for other, page in _PAGES.items():
            text = re.sub(rf"(?<=\(){re.escape(other)}(?=[)#])", page, text)
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`<!-- include PATH -->` shows a file of the repository, where the page in the repository only names it."""
    for source, page in _PAGES.items():
        markdown = markdown.replace(f"(../{source}", f"({page}")
    return re.sub(r"^<!-- include (\S+) -->$", _show_file, markdown, flags=re.MULTILINE)


def _show_file(match: re.Match[str]) -> str:
    return f"```python\n{(_ROOT / match[1]).read_text('utf-8').rstrip()}\n```"
