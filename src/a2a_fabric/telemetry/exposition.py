"""Several expositions of metrics as one: the workers of a node are scraped as a single process.

Counters and histograms are added up. Of gauges that count things in a process (streams, sessions, memory) the sum is
wanted, too; of gauges that say something about the node or an agent, the workers agree or the greatest value is."""

from __future__ import annotations

from collections.abc import Iterable

_SUMMED_GAUGES = (
    "fabric_active_streams",
    "fabric_sessions",
    "fabric_streams",
    "fabric_limit_",
    "fabric_outbound_connections",
    "fabric_store_connections",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_open_fds",
)


def merge_expositions(expositions: Iterable[bytes]) -> bytes:
    """In the order in which families and series first appear."""
    families: dict[str, tuple[list[str], dict[str, float]]] = {}
    for exposition in expositions:
        _add_exposition(families, exposition.decode())
    lines = [
        line
        for comments, values in families.values()
        for line in (*comments, *(f"{series} {_format(value)}" for series, value in values.items()))
    ]
    return ("\n".join(lines) + "\n").encode() if lines else b""


def _add_exposition(families: dict[str, tuple[list[str], dict[str, float]]], text: str) -> None:
    is_new, is_summed, values = False, False, dict[str, float]()
    name = ""
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, family, *rest = line.split(" ", 3)
            if family != name:
                name, is_new = family, family not in families
                values = families.setdefault(family, ([], {}))[1]
            if is_new:
                families[family][0].append(line)
            if word == "TYPE":
                is_summed = rest != ["gauge"] or family.startswith(_SUMMED_GAUGES)
        elif line:
            series, _, number = line.rpartition(" ")
            value = float(number)
            known = values.get(series)
            values[series] = value if known is None else known + value if is_summed else max(known, value)


def _format(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
