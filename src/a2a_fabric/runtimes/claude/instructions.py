"""The system prompt of an agent for Claude Code: its instructions, what its card says of it, and what it knows.

An agent with instructions alone gets its own file. With more, the texts are joined in a file of the runtime, because
they may be too long for an argument. Knowledge is the Markdown of the agent's knowledge folder and of its personal
overlay, which is never part of the agent's folder."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

INSTRUCTIONS_FILE = "CLAUDE.md"
KNOWLEDGE_FOLDER = "knowledge"
_MAX_KNOWLEDGE = 256 * 1024  # bytes of all files together; what is beyond is named only
_MAX_FILES = 1000


class SystemPrompt:
    """`sections` are texts of the card by heading; `folders` are those of the knowledge, the agent's own first."""

    def __init__(
        self, root: Path, instructions: str | None, sections: Mapping[str, str], folders: Iterable[Path]
    ) -> None:
        self._root = root
        self._instructions = root / (instructions or INSTRUCTIONS_FILE)
        self._sections = {heading: text for heading, text in sections.items() if text}
        self._folders = tuple(folders)
        self._written: Path | None = None

    @property
    def own_file(self) -> Path:
        """The agent's own file, which the program might find by itself, too."""
        return self._instructions

    def find_file(self) -> Path | None:
        """The file of the whole prompt; None if there is nothing to say. Reads files, so call it in a thread."""
        knowledge = "".join(self._render_knowledge())
        if not knowledge and not self._sections:
            return self._instructions if self._instructions.is_file() else None
        parts = [_read_text(self._instructions)]
        parts += [f"# {heading}\n\n{text}\n" for heading, text in self._sections.items()]
        if knowledge:
            parts.append(f"# Knowledge\n\n{knowledge}")
        text = "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"
        if self._written is None:
            self._written = Path(tempfile.mkdtemp(prefix="fabric-prompt-"))
        file = self._written / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.md"
        if not file.exists():
            temporary = file.with_suffix(".tmp")
            temporary.write_text(text, "utf-8")
            temporary.replace(file)
        return file

    def close(self) -> None:
        if self._written is not None:
            shutil.rmtree(self._written, ignore_errors=True)

    def _render_knowledge(self) -> Iterator[str]:
        budget = _MAX_KNOWLEDGE
        for folder in self._folders:
            root = folder.resolve()
            for path in sorted(folder.glob("*.md"))[:_MAX_FILES] if folder.is_dir() else ():
                if not path.resolve().is_relative_to(root):
                    continue  # a link out of the folder is not knowledge of this agent
                text = _read_text(path)
                budget -= len(text)
                yield (
                    f"## {path.name}\n\n{text.strip()}\n\n"
                    if budget >= 0
                    else f"## {path.name}\n\nRead it at {path}\n\n"
                )


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KNOWLEDGE).decode(errors="replace")
    except OSError:
        return ""
