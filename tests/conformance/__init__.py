"""`make conformance`: the official MCP conformance suite, directly and through a node; then real clients and agents."""
