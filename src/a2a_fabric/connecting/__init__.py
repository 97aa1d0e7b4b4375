"""Our own entry in the configuration of MCP clients: where it stands, what it says, and the text with or without it."""
