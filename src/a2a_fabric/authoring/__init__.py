"""Behind `Agent`: schemas from type hints, running a function, serving it over HTTP or JSON lines."""
