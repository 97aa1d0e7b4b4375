"""An agent that is a program: arguments come as JSON on stdin, the answer goes to stdout."""

import json
import sys

print(json.dumps({"kilometres": round(json.load(sys.stdin)["miles"] * 1.609344, 3)}))
