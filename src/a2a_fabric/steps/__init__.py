"""What happens around every call, one wrapper a file; none knows a protocol or another step."""
