"""What stands behind `Agent`: schemas from hints, running a function, serving it over HTTP or JSON lines."""
