"""Reads the MCP server files of other clients and turns them into agents. Pure: text in, values out."""
