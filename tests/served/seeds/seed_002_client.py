#!/usr/bin/env python3
"""A client of the lock protocol in seed 002, "Locking & Consistency Spec (v6.3)".

It is written from the text of the seed alone: lock files that are made with O_CREAT|O_EXCL,
leases, renewals, steals by rename(), and fencing tokens. It knows only the directory of the lock
files (in the seed: .jvs/locks) and the id of a worktree, and uses Python's standard library.

usage: seed_002_client.py DIRECTORY WORKTREE_ID

It reads one command from each line of standard input, and answers with one line of JSON: {"ok":
RECORD} with the record as it stands afterwards (null if there is none), or {"error": CLASS,
"errno": NAME or null}. The commands:

  acquire       "Acquire": create; on EEXIST evaluate the expiry, and steal if that is allowed
  create        only the first step of it: create, write, fsync, fsync of the directory
  renew         "Renew", with the check that this client is the holder
  steal         "Steal", with the checks of the seed
  replace       only the steps of a steal: write the tmp file, fsync, rename, fsync of the directory
  release       "Release", with the check that this client is the holder
  remove        only the last step of it: unlink
  rewrite       only the last step of a renewal: write the record with this client's nonce
  read          nothing: the answer shows the record
  stopped       {"ok": true} if a renewal failed and this client has to stop its writes
"""

import errno
import getpass
import json
import os
import socket
import sys
import time
from datetime import datetime, timezone

# "Default policy values"
LEASE_DURATION_MS = 30000
RENEW_INTERVAL_MS = 10000
MAX_CLOCK_SKEW_MS = 2000
STEAL_GRACE_MS = 1000


class LockError(Exception):
    """One of the seed's error classes."""


def now_ms():
    return time.time_ns() // 1_000_000


def to_text(ms):
    at = datetime.fromtimestamp(ms / 1000, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_ms(value):
    """Parses a time of a record. The seed does not say how a record writes one."""
    if isinstance(value, (int, float)):
        return int(value)
    text = value.replace("Z", "+00:00")
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def start_time():
    with open("/proc/self/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[19]


def user():
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class Client:
    def __init__(self, directory, worktree_id):
        self.directory = directory
        self.worktree_id = worktree_id
        self.path = os.path.join(directory, worktree_id + ".lock")
        self.holder_id = ":".join([socket.gethostname(), user(), str(os.getpid()), start_time()])
        self.nonce = os.urandom(16).hex()
        self.session = os.urandom(8).hex()
        self.must_stop = False

    # The record.

    def read(self):
        """Returns the record; None if there is none, {} if it is not complete."""
        try:
            with open(self.path, encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return None
        except ValueError:
            return {}

    def record(self, seq, token, created_at, lock_id=None):
        """Returns a record of this client, with all fields of the schema."""
        now = now_ms()
        return {
            "lock_id": lock_id or os.urandom(16).hex(),
            "worktree_id": self.worktree_id,
            "holder_id": self.holder_id,
            "holder_nonce": self.nonce,
            "session_id": self.session,
            "acquire_seq": seq,
            "created_at": created_at if created_at is not None else to_text(now),
            "last_renewed_at": to_text(now),
            "lease_duration_ms": LEASE_DURATION_MS,
            "renew_interval_ms": RENEW_INTERVAL_MS,
            "max_clock_skew_ms": MAX_CLOCK_SKEW_MS,
            "steal_grace_ms": STEAL_GRACE_MS,
            "lease_expires_at": to_text(now + LEASE_DURATION_MS),
            "fencing_token": token,
        }

    def write(self, path, flags, record):
        """Writes a record to a file and fsyncs it."""
        file = os.open(path, flags, 0o644)
        try:
            data = json.dumps(record).encode()
            while data:
                data = data[os.write(file, data):]
            os.fsync(file)
        finally:
            os.close(file)

    def sync_directory(self):
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def is_mine(self, record):
        return (
            bool(record)
            and record.get("holder_nonce") == self.nonce
            and record.get("session_id") == self.session
        )

    # "Acquire"

    def create(self):
        """"create lock file atomically using `O_CREAT|O_EXCL`"; "after successful create, fsync
        lock file and parent directory"."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self.write(self.path, flags, self.record(1, 1, None))
        self.sync_directory()
        self.must_stop = False

    def acquire(self):
        try:
            self.create()
        except FileExistsError:
            # "read existing lock and evaluate expiry"
            self.steal()

    # "Renew"

    def rewrite(self):
        record = self.read() or {}
        mine = self.record(
            record.get("acquire_seq", 1),
            record.get("fencing_token", 1),
            record.get("created_at"),
            record.get("lock_id"),
        )
        self.write(self.path, os.O_WRONLY | os.O_TRUNC, mine)

    def renew(self):
        if not self.is_mine(self.read()):
            self.must_stop = True
            raise LockError("E_LOCK_NOT_HELD")
        try:
            self.rewrite()
        except OSError:
            # "if renewal commit fails, holder must stop writes immediately"
            self.must_stop = True
            raise

    # "Steal"

    def steal(self):
        record = self.read()
        if not record:
            raise LockError("E_LOCK_CONFLICT")
        now = now_ms()
        expires = to_ms(record["lease_expires_at"])
        skew, grace = record["max_clock_skew_ms"], record["steal_grace_ms"]
        if not now > expires + skew + grace:
            raise LockError("E_LOCK_CONFLICT")
        # "Clock skew detection (MUST)"
        observed_skew = abs(now - expires - record["lease_duration_ms"])
        if observed_skew > skew:
            raise LockError("E_CLOCK_SKEW_EXCEEDED")
        self.replace()

    def replace(self):
        record = self.read() or {}
        # "new holder increments fencing token and `acquire_seq`"
        mine = self.record(
            record.get("acquire_seq", 0) + 1, record.get("fencing_token", 0) + 1, None
        )
        # 1. "write new lock record to `.jvs/locks/<worktree_id>.lock.tmp`; fsync"
        self.write(self.path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mine)
        # 2. "`rename()` tmp over existing `.lock` file; fsync parent dir"
        os.rename(self.path + ".tmp", self.path)
        self.sync_directory()
        self.must_stop = False

    # "Release"

    def remove(self):
        os.unlink(self.path)
        self.sync_directory()

    def release(self):
        if not self.is_mine(self.read()):
            raise LockError("E_LOCK_NOT_HELD")
        self.remove()


def main():
    client = Client(sys.argv[1], sys.argv[2])
    steps = {
        name: getattr(client, name)
        for name in (
            "acquire", "create", "renew", "steal", "replace", "release", "remove", "rewrite"
        )
    }
    steps["read"] = lambda: None
    for line in sys.stdin:
        command = line.strip()
        try:
            if command == "stopped":
                answer = {"ok": client.must_stop}
            else:
                steps[command]()
                answer = {"ok": client.read()}
        except LockError as error:
            answer = {"error": str(error), "errno": None}
        except OSError as error:
            names = {errno.EEXIST: "E_LOCK_CONFLICT", errno.EBUSY: "E_LOCK_CONFLICT"}
            name = names.get(error.errno, "E_LOCK_NOT_HELD")
            answer = {"error": name, "errno": errno.errorcode.get(error.errno)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
