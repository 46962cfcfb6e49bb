#!/usr/bin/env python3
# Runs a command while it holds a lock of a latchfs server, with Python's own library.
# usage: LATCHFS_SERVER=http://box:8080 python3 lock.py NAME CLIENT COMMAND...
# LATCHFS_CA names the certificate of the server's CA, LATCHFS_TOKEN_FILE the file with a token.
# Exits with the command's code, or with 76 when the lock was lost and the command was stopped.
import json, os, secrets, signal, ssl, subprocess, sys, threading, time
from contextlib import suppress
from pathlib import Path
from urllib import error, parse, request

SERVER = os.environ.get("LATCHFS_SERVER", "http://127.0.0.1:8080")
TLS = ssl.create_default_context(cafile=os.environ.get("LATCHFS_CA"))
KEY = os.environ.get("LATCHFS_TOKEN_FILE")
HEADERS = {"Authorization": "Bearer " + Path(KEY).read_text().strip()} if KEY else {}
TTL = int(os.environ.get("LATCHFS_TTL", "30"))  # seconds
WAIT = 240  # seconds in the queue, at most
# Like the server's clock it counts the time in suspend; on a Mac CLOCK_MONOTONIC does.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def ask(method, path, timeout=TTL / 10, **options):
    body = parse.urlencode(options).encode() if options else None
    question = request.Request(SERVER + path, body, HEADERS, method=method)
    with request.urlopen(question, timeout=timeout, context=TLS) as answer:
        return json.load(answer)


class Session:
    """Expires at the server, with its lock, TTL seconds after the last keep-alive."""

    def __init__(self, client):
        self.answered, self.token, self.is_over = time.clock_gettime(CLOCK), None, False
        self.id = ask("POST", "/sessions", TTL, client=client, ttl=f"{TTL}s")["session"]
        threading.Thread(target=self.keep_alive, daemon=True).start()

    def keep_alive(self):
        pause = TTL / 3
        while not self.is_over:
            time.sleep(pause)
            sent, token, pause = time.clock_gettime(CLOCK), self.token, TTL / 10
            try:
                ask("POST", f"/sessions/{self.id}/keepalive")
                self.answered, pause = sent, TTL / 3
                # The keep-alive's own `lost` names a loss once: a lost answer would hide it.
                held = ask("GET", f"/sessions/{self.id}")["held"]
                self.is_over = token is not None and token not in [lock["token"] for lock in held]
            except error.HTTPError as refusal:
                self.is_over = refusal.code == 410
            except OSError:
                pass  # no answer: the next attempt follows soon

    def is_lost(self):  # leaves 0.3 TTL to stop the command before the session can expire
        return self.is_over or time.clock_gettime(CLOCK) - self.answered > 0.7 * TTL


def main(name, client, *words):
    client += "-" + secrets.token_hex(4)  # two programs are two clients
    session, command, code, signals = Session(client), None, None, []
    try:
        options = {"client": client, "session": session.id, "wait": f"{WAIT}s"}
        session.token = ask("POST", "/locks/" + parse.quote(name), WAIT + 10, **options)["token"]
        os.environ.update(LATCHFS_LOCK=name, LATCHFS_TOKEN=str(session.token))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: signals.append(number))
        while code is None and not signals and not session.is_lost():
            command = command or subprocess.Popen(words, start_new_session=True)
            with suppress(subprocess.TimeoutExpired):
                code = command.wait(0.1)
    except error.HTTPError as refusal:
        sys.exit(json.load(refusal)["detail"])
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL) if command and code is None else ():
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(command.pid, number)
                command.wait(TTL / 10)
        with suppress(OSError):  # without an answer the session expires by itself
            ask("DELETE", f"/sessions/{session.id}")
    if code is not None:
        return code if code >= 0 else 128 - code
    if not signals:
        print("the lock is lost: the command was stopped", file=sys.stderr)
    return 128 + signals[0] if signals else 76


sys.exit(main(*sys.argv[1:]))
