"""counter, a program that speaks JSON lines and needs only Python: counts words, characters, lines and letters.

-> {"id": "1", "name": "count", "arguments": {"text": "..."}}
<- {"id": "1", "event": "progress", "data": {"percent": 50}}
<- {"id": "1", "ok": true, "result": {...}}"""

import json
import sys
from collections import Counter
from typing import Any


def write_message(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def count(text: str) -> dict[str, Any]:
    words = text.split()
    letters = Counter(letter for letter in text.lower() if letter.isalpha())
    lines = len(text.splitlines())
    return {
        "answer": f"{len(words)} words, {len(text)} characters, {lines} lines",
        "words": len(words),
        "characters": len(text),
        "lines": lines,
        "letters": dict(letters.most_common(5)),
    }


def answer(request: dict[str, Any]) -> None:
    number, arguments = request.get("id"), request.get("arguments") or {}
    if request.get("name") == "fabric.health":
        write_message(id=number, ok=True, result={"status": "ok"})
    elif request.get("name") != "count":
        write_message(id=number, ok=False, error={"code": "CAPABILITY_NOT_FOUND", "message": "Only 'count' is offered"})
    elif not isinstance(arguments.get("text"), str):
        write_message(id=number, ok=False, error={"code": "BAD_INPUT", "message": "Argument 'text' must be a string"})
    else:
        if request.get("stream"):
            write_message(id=number, event="progress", data={"percent": 50, "message": "counting"})
        write_message(id=number, ok=True, result=count(arguments["text"]))


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if not request.get("cancel"):
            answer(request)
