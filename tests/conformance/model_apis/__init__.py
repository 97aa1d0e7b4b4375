"""Two model APIs, as much of each as a client with MCP tools needs: what it asks, and how an answer streams."""
