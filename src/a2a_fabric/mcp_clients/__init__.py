"""Fabric's entry in the configuration of MCP clients: where it belongs, what it holds, how it is edited."""
