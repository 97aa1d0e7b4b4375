"""sorter, a program that runs once for each call: arguments on stdin, the answer on stdout."""

import json
import sys
from typing import Any


def number_key(line: str) -> tuple[bool, float, str]:
    """Numbers by size, then the lines that are not numbers."""
    try:
        return False, float(line.split()[0]), line
    except (ValueError, IndexError):
        return True, 0.0, line


def sort(text: str, numeric: bool = False, reverse: bool = False, unique: bool = False) -> dict[str, Any]:
    lines = text.splitlines()
    if unique:
        lines = list(dict.fromkeys(lines))
    lines.sort(key=number_key if numeric else None, reverse=reverse)
    return {"answer": "\n".join(lines), "lines": len(lines)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(sort(**json.load(sys.stdin))))
