"""An agent that comes from a git repository."""

import json
import sys

print(json.dumps({"advice": "Sleep on it.", "about": json.load(sys.stdin).get("task", "")}))
