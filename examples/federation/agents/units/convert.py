"""An agent that is a program: arguments come as JSON on stdin, the answer goes to stdout."""

import json
import re
import sys

arguments = json.load(sys.stdin)
miles = arguments.get("miles")
if miles is None:
    number = re.search(r"\d+(\.\d+)?", arguments.get("task", ""))
    if number is None:
        sys.exit("Say how many miles.")
    miles = float(number[0])
print(json.dumps({"kilometres": round(miles * 1.609344, 3)}))
