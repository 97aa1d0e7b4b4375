"""Writes the kept results into docs/performance.md and README.md: `python -m bench.performance_page`.

The pages have marks (`<!-- bench:NAME begin -->` to `<!-- bench:NAME end -->`); the text between them is replaced. A
part that was never measured keeps its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from bench import telemetry
from bench.results import Results, read_results

_ROOT = Path(__file__).parents[1]
PAGES = (_ROOT / "docs" / "performance.md", _ROOT / "README.md")
CONNECTIONS = (1, 16, 64)
_RATE, _SHARE, _CPU = "calls/s", "share of forwarder", "CPU µs/call"
_REUSED = "FastMCP's proxy, reused client"
_REUSED_STDIO = "FastMCP's proxy, stdio server, reused client"
_SLOW = "fabric node beside a slow agent"


def write() -> None:
    results = read_results()
    for path in PAGES:
        path.write_text(render_page(path.read_text("utf-8"), results), "utf-8")


def render_page(page: str, results: Results) -> str:
    parts = {name: group.render() for name, group in results.groups.items()}
    parts |= {"answers": render_answers(results), "goals": render_goals(results), "readme": render_claim(results)}

    def replace(match: re.Match[str]) -> str:
        text = parts.get(match[2])
        return match[0] if not text else f"{match[1]}\n{text}\n{match[4]}"

    return re.sub(r"(<!-- bench:(\w+) begin -->)(.*?)(<!-- bench:\2 end -->)", replace, page, flags=re.DOTALL)


# --- the answers -------------------------------------------------------------------------------------------------


def render_answers(results: Results) -> str:
    answers = (
        _answer_calls(results),
        _answer_mcp(results),
        _answer_alone(results),
        _answer_streams(results),
        _answer_peers(results),
        _answer_tail(results),
        _answer_memory(results),
    )
    return "\n".join(f"- {answer}" for answer in answers if answer)


def _answer_calls(results: Results) -> str:
    rate, shares = results.find("calls", "fabric node", _RATE, 16), _shares(results, "calls", "fabric node")
    if not rate:
        return ""
    return (
        f"**Plain calls** to an HTTP agent: {rate:,.0f} calls/s at 16 connections; {shares} of a bare forwarder at 1, "
        "16 and 64 connections."
    )


def _answer_mcp(results: Results) -> str:
    kinds = {
        "stateless": "`/mcp`, stateless server",
        "handshake": "`/mcp`, handshake server, events",
        "stdio": "`/mcp`, stdio server",
    }
    rates = {kind: results.find("mcp", name, _RATE, 16) for kind, name in kinds.items()}
    if not all(rates.values()):
        return ""
    told = ", ".join(
        f"{rate:,.0f} to a {kind} server ({results.find('mcp', kinds[kind], _SHARE, 16):.0%})"
        for kind, rate in rates.items()
    )
    return f"**MCP `tools/call`** at `/mcp`, calls/s at 16 connections and share of the bare forwarder: {told}."


def _answer_alone(results: Results) -> str:
    kinds = {
        "stateless": "`/agents/ID/mcp`, stateless server",
        "handshake": "`/agents/ID/mcp`, handshake server",
        "bridge": "bridge, stateless client to handshake server",
    }
    shares = {kind: results.find("mcp", name, _SHARE, 16) for kind, name in kinds.items()}
    if not all(shares.values()):
        return ""
    return (
        f"**One agent alone**, at `/agents/ID/mcp`: {shares['stateless']:.0%} of the bare forwarder for a stateless "
        f"server, {shares['handshake']:.0%} for a handshake server, {shares['bridge']:.0%} across the bridge."
    )


def _answer_streams(results: Results) -> str:
    ours, bare = (results.find("calls", name, "CPU µs/event") for name in ("fabric node", "bare forwarder"))
    return f"**Streams**: {ours:.1f} µs of CPU an event; the bare forwarder takes {bare:.1f}." if ours and bare else ""


def _answer_peers(results: Results) -> str:
    names = {
        "FastMCP's proxy": (_REUSED, "FastMCP's proxy, as it comes"),
        "a forwarder made of the SDK": ("SDK forwarder, tuned", "SDK forwarder, as it comes"),
        "LiteLLM": ("LiteLLM, tuned", "LiteLLM, as it comes"),
        "ContextForge": ("ContextForge, tuned", "ContextForge, as it comes"),
    }
    ours = results.find("peers", "Fabric, handshake server", _RATE, 16)
    told = []
    for name, (tuned, plain) in names.items():
        best, worst = (results.find("peers", each, _RATE, 16) for each in (tuned, plain))
        if best and worst:
            told.append(f"{name} {best:,.0f} tuned and {worst:,.0f} as it comes")
    if not ours or not told:
        return ""
    return (
        f"**Other proxies** before the same handshake server, calls/s at 16 connections: Fabric {ours:,.0f}, "
        f"{', '.join(told)}."
    )


def _answer_tail(results: Results) -> str:
    ratio, p999 = (results.find("tail", _SLOW, column) for column in ("p99.9 / p50", "p99.9 ms"))
    if not ratio or not p999:
        return ""
    return (
        f"**Tail**: at half of the peak, beside a slow agent that takes a fifth of the calls, p99.9 is {p999:.1f} ms, "
        f"{ratio:.1f} times the median."
    )


def _answer_memory(results: Results) -> str:
    memory = _memory(results)
    return f"**Memory**: {memory}." if memory else ""


def _memory(results: Results) -> str:
    if "memory" not in results.groups:
        return ""
    first, *_ = results.groups["memory"].blocks
    rows = getattr(first, "rows", [])
    if len(rows) < 3:
        return ""
    parts = [f"{rows[1][1]} MB after {rows[1][0]} calls, {rows[-1][1]} MB after {rows[-1][0]}"]
    for name, what in (("/mcp", "each idle MCP session"), ("/mcp, with a stream", "one with an open stream")):
        each = results.find("memory", name, "memory KB each")
        if each is not None:
            parts.append(f"{each:.0f} KB for {what}")
    return "; ".join(parts)


def _shares(results: Results, group: str, name: str) -> str:
    shares = [results.find(group, name, _SHARE, connections) for connections in CONNECTIONS]
    return ", ".join(f"{share:.0%}" for share in shares if share is not None)


# --- the goals ---------------------------------------------------------------------------------------------------


def render_goals(results: Results) -> str:
    rows = [(goal, measure(results)) for goal, measure in _GOALS.items()]
    lines = [f"| {goal} | {measured or 'not measured yet'} |" for goal, measured in rows]
    return "\n".join(["| goal | measured at 1, 16, 64 connections |", "|---|---|", *lines])


def _times(ours: str, theirs: str) -> Callable[[Results], str]:
    def measure(results: Results) -> str:
        pairs = [[results.find("peers", each, _RATE, number) for each in (ours, theirs)] for number in CONNECTIONS]
        ratios = [f"{mine / other:.0f}" for mine, other in pairs if mine and other]
        return f"{', '.join(ratios)} times" if ratios else ""

    return measure


def _share_of(group: str, name: str) -> Callable[[Results], str]:
    return lambda results: _shares(results, group, name)


def _stream_share(results: Results) -> str:
    ours, bare = (results.find("calls", name, "CPU µs/event") for name in ("fabric node", "bare forwarder"))
    return f"{bare / ours:.0%} (one measurement with 24 streams)" if ours and bare else ""


def _tail_ratio(results: Results) -> str:
    ratio, bare = (results.find("tail", name, "p99.9 / p50") for name in (_SLOW, "bare forwarder"))
    return f"{ratio:.1f} times; the bare forwarder alone {bare:.1f} times" if ratio and bare else ""


def _whole_jobs(engine: str) -> Callable[[Results], str]:
    """The rate has no meaning without the machine's, so the rate at which it only accepts jobs stands beside it."""

    def measure(results: Results) -> str:
        whole, accepted = (
            results.find("jobs", f"{engine}, {way}through a node", "jobs/s", 64) for way in ("whole jobs ", "")
        )
        return f"{whole:,.0f}/s; jobs only accepted {accepted:,.0f}/s in the same run" if whole and accepted else ""

    return measure


def _accepted_jobs(engine: str) -> Callable[[Results], str]:
    def measure(results: Results) -> str:
        accepted = results.find("jobs", f"{engine}, through a node", "jobs/s", 64)
        return f"{accepted:,.0f}/s" if accepted else ""

    return measure


def _a2a_tasks(results: Results) -> str:
    tasks, messages = (results.find("a2a", f"fabric node, {kind}", _RATE, 64) for kind in ("tasks", "messages"))
    return f"{tasks:,.0f}/s; messages, not stored, {messages:,.0f}/s in the same run" if tasks and messages else ""


def _message_share(results: Results) -> str:
    shares = [
        results.find("rest", f"{engine}, POST /v1/messages", "of fabric.call", 64)
        for engine in ("SQLite", "PostgreSQL")
    ]
    return ", ".join(f"{share:.0%}" for share in shares if share is not None)


def _telemetry_share(name: str) -> Callable[[Results], str]:
    def measure(results: Results) -> str:
        share = results.find("telemetry", name, telemetry.RATE_SHARE)
        return f"{share:.1%} (at 16 connections)" if share is not None else ""

    return measure


_GOALS: dict[str, Callable[[Results], str]] = {
    "plain calls at least 70 % of the bare forwarder": _share_of("calls", "fabric node"),
    "the same with 10,000 agents": _share_of("calls", "fabric node, 10,000 agents"),
    "stateless MCP at least 70 %": _share_of("mcp", "`/mcp`, stateless server"),
    "`/mcp` to a handshake server at least 45 %": _share_of("mcp", "`/mcp`, handshake server, events"),
    "`/agents/ID/mcp` at least 45 %, stateless server": _share_of("mcp", "`/agents/ID/mcp`, stateless server"),
    "`/agents/ID/mcp` at least 45 %, handshake server": _share_of("mcp", "`/agents/ID/mcp`, handshake server"),
    "handshake server: 10 times FastMCP's proxy with a reused client": _times("Fabric, handshake server", _REUSED),
    "stdio server: 4 times FastMCP's proxy with a reused client": _times("Fabric, stdio server", _REUSED_STDIO),
    "streams at least 80 % of the bare forwarder's CPU per event": _stream_share,
    "with all telemetry at least 85 % of the calls/s without": _telemetry_share(telemetry.ALL_ON),
    "with an address for spans that are off at least 98 %": _telemetry_share(telemetry.SPANS_OFF),
    "p99.9 under 10 times p50 beside a slow agent": _tail_ratio,
    "jobs from beginning to end, 64 callers, SQLite: 3,000/s": _whole_jobs("SQLite"),
    "the same, PostgreSQL: 1,500/s": _whole_jobs("PostgreSQL"),
    "jobs accepted, 64 callers, NATS with one replica: 2,000/s": _accepted_jobs("NATS"),
    "A2A tasks, 64 connections, SQLite: 2,000/s": _a2a_tasks,
    "`POST /v1/messages` at least 70 % of `fabric.call` as a job (64; SQLite, PostgreSQL)": _message_share,
    "memory flat over a million calls, under 30 KB for each idle MCP session": _memory,
}


# --- README ------------------------------------------------------------------------------------------------------


def render_claim(results: Results) -> str:
    peers = _answer_peers(results)
    mcp = _answer_mcp(results)
    if not peers or not mcp:
        return ""
    moment = results.groups["peers"].measured_at
    return f"{_plain(mcp)} {_plain(peers)} (`make bench peers`, {moment[:10]}.)"


def _plain(answer: str) -> str:
    return answer.replace("**", "")


if __name__ == "__main__":
    write()
