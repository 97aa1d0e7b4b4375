"""The steps around every call: observe, authorize, limit, and the routing at the end. None knows a protocol."""
