"""An agent of the directory's own protocol, with nothing but the standard library: it says back what it is given.

python3 examples/parrot_agent.py          # on port 9001, or on the one that you name
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Parrot(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"jsonrpc": "2.0", "id": asked.get("id")}
        if asked.get("method") == "a2a/task":
            task = asked["params"]
            output = {"seen": task.get("input", {})}
            said["result"] = {"taskId": task["taskId"], "status": "completed", "output": output}
        else:
            said["error"] = {"code": -32601, "message": "Method not found"}
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        """Nothing: the gateway has a log."""


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9001), Parrot)
print(f"parrot listens on http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
