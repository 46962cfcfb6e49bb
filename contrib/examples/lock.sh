#!/bin/sh
# Runs something under a lock of a latchfs server, by curl alone.
# usage: LATCHFS_SERVER=http://box:8080 sh lock.sh NAME CLIENT
set -eu
url=${LATCHFS_SERVER:-http://127.0.0.1:8080}/locks/$1
client=$2

# Waits in line for 30 s at most. The answer's ETag is the token of this tenure.
token=$(curl -fsS -D - -o /dev/null -X POST "$url?ttl=30s&wait=30s" --data-urlencode "client=$client" |
    tr -d '\r"' | sed -n 's/^[Ee][Tt]ag: //p')
echo "mine, token $token"

# Renew at a third of the ttl. If that fails the lock is lost: stop the work.
curl -fsS -o /dev/null -X PATCH "$url" -H "If-Match: \"$token\"" --data-urlencode "client=$client" ||
    { echo "lost" >&2; exit 1; }

# The work goes here; give the token to what it changes, so that it can refuse older ones.

# With the token, a release that comes too late touches nothing newer.
curl -fsS -o /dev/null -X DELETE "$url" -H "If-Match: \"$token\"" --data-urlencode "client=$client"
echo "released"
