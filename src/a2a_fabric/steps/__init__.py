"""The steps around every call, one per module; none knows a protocol or another step."""
