#!/usr/bin/env python3
"""Runs something under a lock of a latchfs server, with Python's own library.

usage: LATCHFS_SERVER=http://box:8080 python3 lock.py NAME CLIENT
"""

import json
import os
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

SERVER = os.environ.get("LATCHFS_SERVER", "http://127.0.0.1:8080")


class Lock:
    """`with Lock(name, client) as token:` holds the lock, and renews it, until the block ends."""

    def __init__(self, name, client, ttl=30.0, wait=30.0):
        self.url = f"{SERVER}/locks/{urllib.parse.quote(name)}"
        self.client, self.ttl, self.wait = client, ttl, wait
        self.lost = threading.Event()
        self._over = threading.Event()

    def _ask(self, method, token=None, **options):
        body = urllib.parse.urlencode({"client": self.client, **options}).encode()
        request = urllib.request.Request(self.url, body, method=method)
        if token is not None:
            request.add_header("If-Match", f'"{token}"')
        with urllib.request.urlopen(request, timeout=self.wait + 10) as answer:
            return json.load(answer)

    def _keep(self):
        # A third of the ttl leaves time for two more attempts.
        while not self._over.wait(self.ttl / 3):
            try:
                self._ask("PATCH", self.token)
            except urllib.error.HTTPError:
                self.lost.set()
                return
            except OSError:
                continue

    def __enter__(self):
        self.token = self._ask("POST", ttl=f"{self.ttl}s", wait=f"{self.wait}s")["token"]
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()
        return self.token

    def __exit__(self, *_):
        self._over.set()
        self._keeper.join()
        self._ask("DELETE", self.token)


if __name__ == "__main__":
    name, client = sys.argv[1:]
    with Lock(name, client) as token:
        print(f"mine, token {token}", flush=True)
        # The work goes here; give the token to what it changes, so that it can refuse older ones.
    print("released")
