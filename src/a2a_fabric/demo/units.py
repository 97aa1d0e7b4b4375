"""units, an MCP server made with the official SDK: one tool, which converts between units."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

_FULL_PRECISION = Context(prec=28)
_DISPLAY_PRECISION = Context(prec=12)

# The size of each unit in the first unit of its kind; temperatures also have a zero point.
_UNITS = {
    "length": {
        "m": "1", "mm": "0.001", "cm": "0.01", "km": "1000", "in": "0.0254", "ft": "0.3048", "yd": "0.9144",
        "mi": "1609.344", "nmi": "1852",
    },
    "mass": {"kg": "1", "mg": "0.000001", "g": "0.001", "t": "1000", "oz": "0.028349523125", "lb": "0.45359237"},
    "volume": {"l": "1", "ml": "0.001", "cl": "0.01", "m3": "1000", "gal": "3.785411784", "pt": "0.473176473"},
    "time": {"s": "1", "ms": "0.001", "min": "60", "h": "3600", "d": "86400", "week": "604800"},
    "data": {"B": "1", "kB": "1000", "MB": "1000000", "GB": "1000000000", "KiB": "1024", "MiB": "1048576"},
    "temperature": {"K": "1", "C": "1", "F": "0.5555555555555555555555555556"},
}  # fmt: skip
_ZERO_POINT = {"C": Decimal("273.15"), "F": Decimal("255.3722222222222222222222222")}  # in K
_KIND_OF_UNIT = {unit: kind for kind, units in _UNITS.items() for unit in units}


class NotConvertible(ValueError):
    """The unit is unknown, or the two units measure different things."""


def convert_value(value: Decimal, unit: str, to: str) -> Decimal:
    """Raises NotConvertible."""
    for each in (unit, to):
        if each not in _KIND_OF_UNIT:
            raise NotConvertible(f"Unknown unit '{each[:40]}'; the units are {', '.join(_KIND_OF_UNIT)}")
    kind = _KIND_OF_UNIT[unit]
    if kind != _KIND_OF_UNIT[to]:
        raise NotConvertible(f"{unit} measures {kind}, {to} measures {_KIND_OF_UNIT[to]}")
    sizes = _UNITS[kind]
    try:
        base = _FULL_PRECISION.add(
            _FULL_PRECISION.multiply(value, Decimal(sizes[unit])), _ZERO_POINT.get(unit, Decimal(0))
        )
        result = _FULL_PRECISION.divide(
            _FULL_PRECISION.subtract(base, _ZERO_POINT.get(to, Decimal(0))), Decimal(sizes[to])
        )
    except InvalidOperation as exc:
        raise NotConvertible("The number is too large") from exc
    return _DISPLAY_PRECISION.plus(result).normalize(_DISPLAY_PRECISION)


def build_server() -> MCPServer[Any]:
    units: MCPServer[Any] = MCPServer("units", description="Converts units.", version="1.0.0", log_level="ERROR")

    @units.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
    def convert(value: float, unit: str, to: str) -> dict[str, Any]:
        """Convert a value: length, mass, volume, time, data and temperature, by the units' short names."""
        try:
            result = convert_value(Decimal(str(value)), unit, to)
        except NotConvertible as exc:
            raise ToolError(str(exc)) from exc
        return {"answer": f"{value:g} {unit} = {result:f} {to}", "value": float(result)}

    return units


@asynccontextmanager
async def serve(url: str) -> AsyncIterator[Any]:
    app = build_server().streamable_http_app(streamable_http_path="/", json_response=True)
    async with app.router.lifespan_context(app):
        yield app
