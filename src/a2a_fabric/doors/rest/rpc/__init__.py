"""The RPC protocol of the platform's own client: `POST /` and `GET /stream`.

Requests have no id and are answered all the same. An error is an HTTP status and a JSON-RPC body at once, because the
client checks the first and shows the second."""
