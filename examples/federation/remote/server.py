"""The agent `far`, which is somewhere else: its card at /agent.json, itself at /run."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CARD = {
    "name": "far",
    "version": "1.0.0",
    "description": "Shouts from far away.",
    "displayName": "Far",
    "role": "Herald",
    "signals": ["shout", "announce"],
    "skills": [{"id": "shout", "description": "Says it louder.", "triggers": ["say it louder"]}],
    "context": "shared",
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        host, port = self.server.server_address[:2]
        self.reply({**CARD, "invocation": {"type": "http", "url": f"http://{host}:{port}/run"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply({"ok": True, "result": {"answer": str(body.get("arguments", {}).get("task", "")).upper() + "!"}})

    def reply(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9310), Handler)
    print(f"far is at http://127.0.0.1:{server.server_port}/agent.json", flush=True)
    server.serve_forever()
