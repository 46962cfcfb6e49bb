#!/usr/bin/env python3
# A small client of latchfs's line protocol (latchfs serve --line-listen ADDRESS).
# usage: LATCHFS_LINES=box:7070 python3 line_client.py lock|unlock|own NAME CLIENT [TOKEN]
# Or import it: LineClient("box:7070", "laptop1").try_lock("build")
import os, socket, sys


class LineClient:
    """Each call opens a connection, sends one line and reads one."""

    def __init__(self, address, client):
        host, _, port = address.rpartition(":")
        self.address, self.client = (host.strip("[]"), int(port)), client

    def ask(self, word, name, *more):
        fields = (word, name, self.client, *map(str, more))
        if any("," in field or "\n" in field for field in fields):
            raise ValueError("a field has no comma and no line break")
        with socket.create_connection(self.address, timeout=12) as connection:
            connection.sendall((",".join(fields) + "\n").encode())
            reply = connection.makefile(encoding="utf-8").readline(512)
        if not reply.endswith("\n"):
            raise ConnectionError("the server closed the connection without a reply")
        reply = reply.rstrip("\n")
        if reply in ("ERROR", "TIMEOUT", "INVALID_FORMAT"):
            raise OSError(f"the server answered {reply}")
        return reply

    def try_lock(self, name):
        """Returns the fencing token, or None when the lock is held. It expires after the server's ttl."""
        word, _, token = self.ask("LOCK", name, "token").partition(",")
        return int(token) if word == "SUCCESS" else None

    def try_unlock(self, name, *token):
        """Returns whether the client held the lock; with a token, by that tenure."""
        return self.ask("UNLOCK", name, *token) == "SUCCESS"

    def own_the_lock(self, name):
        """Returns the client that holds the lock, or None."""
        owner = self.ask("OWN", name)
        return None if owner == "NONE" else owner


def main(what, name, client, *token):
    lines = LineClient(os.environ.get("LATCHFS_LINES", "127.0.0.1:7070"), client)
    if what == "own":
        return lines.own_the_lock(name) or "NONE"
    if what == "unlock":
        return "SUCCESS" if lines.try_unlock(name, *token) else "FAIL"
    granted = lines.try_lock(name)
    return "FAIL" if granted is None else f"SUCCESS {granted}"


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in ("lock", "unlock", "own"):
        sys.exit("usage: line_client.py lock|unlock|own NAME CLIENT [TOKEN]")
    print(main(*sys.argv[1:]))
