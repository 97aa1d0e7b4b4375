"""The `fabric.*` operations, each defined once: name, schema, handler. Doors and the command line show them."""

from a2a_fabric.operations.operation import Operation, OperationRequest, PreparedOperation, TraceRef
from a2a_fabric.operations.table import Operations
from a2a_fabric.operations.tools import CallableTool, PlainToolCalls

__all__ = [
    "CallableTool",
    "Operation",
    "OperationRequest",
    "Operations",
    "PlainToolCalls",
    "PreparedOperation",
    "TraceRef",
]
