#!/opt/a2a-fabric/bin/python
"""Whether the node in this container is ready. FABRIC_HEALTH_URL names another address than the usual one."""

import os
import sys
from urllib.error import URLError
from urllib.request import urlopen

url = os.environ.get("FABRIC_HEALTH_URL", "http://127.0.0.1:8000/readyz")
try:
    with urlopen(url, timeout=4) as reply:  # noqa: S310  # of the operator
        sys.stdout.write(reply.read().decode())
except URLError as error:
    body = getattr(error, "read", bytes)()
    sys.exit(f"{error}: {body.decode()}")
