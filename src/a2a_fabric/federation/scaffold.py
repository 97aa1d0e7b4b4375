"""The files of a new agent's folder, for each type. They pass the check, and the agent answers at once."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from a2a_fabric.federation.json_file import NAME_PATTERN

AgentType = Literal["claude", "http", "grpc", "python"]
HTTP_PORT, GRPC_PORT = 9001, 9002

_INVOCATIONS: dict[AgentType, dict[str, Any]] = {
    "claude": {"type": "claude-subprocess", "systemPrompt": "./CLAUDE.md", "knowledgePath": "./knowledge"},
    "http": {"type": "http", "url": f"http://127.0.0.1:{HTTP_PORT}"},
    "grpc": {"type": "grpc", "url": f"grpc://127.0.0.1:{GRPC_PORT}"},
    "python": {"type": "python", "url": "python:agent:agent"},
}

_PYTHON_AGENT = '''"""{title}: an agent as Python functions. Change `answer`, or add more functions."""

from a2a_fabric import Agent

agent = Agent("{name}", description="{title} answers in words.", version="0.1.0")


@agent.capability
def answer(task: str) -> str:
    """Answers a question in words."""
    return f"{title} read: {{task}}"
'''

_HTTP_MAIN = """

if __name__ == "__main__":
    agent.run(port={port})
"""

_GRPC_AGENT = '''"""{title}: an agent over gRPC. Needs: pip install 'a2a-fabric[grpc]'"""

import asyncio
import json

import grpc.aio

from a2a_fabric.runtimes.proto.messages import Capability, Description, HealthReply, Outcome, Result, StreamItem
from a2a_fabric.runtimes.proto.service import handlers


class Service:
    async def describe(self, request, context):
        capability = Capability(name="answer", description="Answers a question in words.")
        return Description(agent_id="{name}", version="0.1.0", capabilities=[capability])

    async def health(self, request, context):
        return HealthReply(status="online")

    async def call(self, request, context):
        task = json.loads(request.input.arguments_json or "{{}}").get("task", request.input.task)
        return Outcome(result=Result(data_json=json.dumps({{"answer": f"{title} read: {{task}}"}})))

    async def stream(self, request, context):
        yield StreamItem(outcome=await self.call(request, context))


async def main() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(Service()),))
    server.add_insecure_port("127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
'''

_INSTRUCTIONS = """# {title}

You are {title}. Answer in one or two sentences, and say so if you do not know.
"""

_KNOWLEDGE = """What {title} should know is written here, one file for each subject.
"""

_README = """# {title}

An agent for Fabric ({type}). `agent.json` says what it does and how it is called.

    a2a-fabric agents lint .
    a2a-fabric agents add .
{start}
"""


def build_files(name: str, kind: AgentType) -> dict[str, str]:
    """The content of each file by its path. Raises ValueError for a name that a card cannot have."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"'{name}' cannot be the name of an agent: use lowercase letters, digits, . _ and -")
    title = re.sub(r"[._-]+", " ", name).strip().title()
    card = {
        "name": name,
        "version": "0.1.0",
        "description": f"{title} answers in words.",
        "displayName": title,
        "role": "Assistant",
        "personality": "Friendly and brief.",
        "signals": [f"ask {name}"],
        "skills": [
            {
                "id": "answer",
                "name": "Answer",
                "description": "Answers a question in words.",
                "triggers": [f"ask {name}"],
                "default": True,
            }
        ],
        "context": "personal",
        "invocation": _INVOCATIONS[kind],
        "provider": {"name": "unknown"},
        "observability": {"traceEnabled": True, "attributes": {"agent.name": name}},
        "metadata": {"tags": []},
    }
    start = {
        "http": "    python agent.py    # in another terminal",
        "grpc": "    python agent.py    # in another terminal",
    }
    files = {
        "agent.json": json.dumps(card, indent=2) + "\n",
        "README.md": _README.format(title=title, type=kind, start=start.get(kind, "")).rstrip() + "\n",
    }
    if kind == "claude":
        files["CLAUDE.md"] = _INSTRUCTIONS.format(title=title)
        files["knowledge/about.md"] = _KNOWLEDGE.format(title=title)
    elif kind == "grpc":
        files["agent.py"] = _GRPC_AGENT.format(title=title, name=name, port=GRPC_PORT)
    else:
        main = _HTTP_MAIN.format(port=HTTP_PORT) if kind == "http" else ""
        files["agent.py"] = _PYTHON_AGENT.format(title=title, name=name) + main
    return files
