"""The `fabric.*` operations, each defined once: name, schema, handler. Doors and the command line show them."""

from a2a_fabric.operations.operation import Operation, Prepared, Request, TraceRef
from a2a_fabric.operations.table import Operations

__all__ = ["Operation", "Operations", "Prepared", "Request", "TraceRef"]
