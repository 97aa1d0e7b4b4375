"""The HTTP server: the ASGI application that the doors hang in, and the process around it."""
