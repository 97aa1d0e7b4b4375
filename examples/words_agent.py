"""An agent without any library: one request a line on stdin, one reply a line on stdout."""

import json
import sys

for line in sys.stdin:
    request = json.loads(line)
    if request.get("cancel"):
        continue
    if request["name"] == "count":
        text = str(request.get("arguments", {}).get("task", ""))
        reply = {"ok": True, "result": {"words": len(text.split())}}
    elif request["name"] == "fabric.health":
        reply = {"ok": True, "result": {"status": "ok"}}
    else:
        reply = {"ok": False, "error": {"code": "CAPABILITY_NOT_FOUND", "message": "Only 'count' is offered"}}
    print(json.dumps({"id": request["id"], **reply}), flush=True)
