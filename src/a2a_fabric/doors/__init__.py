"""Protocols in front of the gateway: each door turns its own requests into operations and calls, and back."""
