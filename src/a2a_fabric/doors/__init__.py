"""Protocols in front of the gateway: each turns its own requests into operations and calls, and back."""
