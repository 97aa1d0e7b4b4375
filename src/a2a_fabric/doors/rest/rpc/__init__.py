"""What the RPC client of document 004's platform speaks: `POST /`, and `GET /stream` beside it.

Its requests have no id and are answered all the same; its errors are a status of HTTP
and a body of JSON-RPC at once, since it looks at the first and shows the second.
"""
