#!/bin/sh
# A one-shot agent: words on stdin, a JSON object on stdout, started anew for each call.
words=$(wc -w)
printf '{"words": %d, "capability": "%s"}\n' "$words" "$FABRIC_CAPABILITY"
