"""`make conformance`: the official MCP conformance suite against our fixture server, directly and through a node."""
