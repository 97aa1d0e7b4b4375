"""Other people's MCP clients, installed from npm and run against a live node; none needs an account or a network."""
