"""What people already have, MCP clients' files of servers, read and turned into agents. Pure: text in, values out."""
