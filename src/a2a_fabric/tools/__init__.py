"""The built-in tools: small sandboxed functions, each an agent of its own with one capability."""
