"""The HTTP server: the ASGI application that holds the doors, and the process around it."""
