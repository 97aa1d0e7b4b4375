"""The one place where the version stands."""

__version__ = "0.1.0"
PROTOCOL_VERSION = "af-mcp-0.1"
