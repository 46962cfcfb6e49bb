"""Runs programs that write `one` to a file of a view, wait, and write `two`.

Arguments: the view, the folder, and a directory for other files. Each program must show nothing in
the folder before it has written `two`; a thread records each state of the folder that it sees.
"""

import os
import shutil
import subprocess
import sys
import threading
import time

view, folder, place = sys.argv[1:]
gate = place + "/gate"
out = folder + "/out"

SHELLS = [["bash"], ["dash"], ["zsh"], ["busybox", "sh"]]

# Scripts of shells. `read` or `cat` waits for the gate.
SHELL_SCRIPTS = {
    "a descriptor": "exec 3>out; echo one >&3; read x <GATE; echo two >&3; exec 3>&-",
    "a descriptor that the end closes": "exec 3>out; echo one >&3; cat GATE >&3",
    "standard output": "exec >out; echo one; read x <GATE; echo two",
    "several duplicates": "exec 3>out 4>&3 5>&4; echo one >&4; exec 4>&-; echo -n >&5; exec 5>&-; "
    "read x <GATE; echo two >&3",
    "both outputs": "{ echo one; read x <GATE; echo two >&2; } >out 2>&1",
    "an inherited descriptor": "exec 3>out; (echo one >&3); /bin/echo -n >&3; (cat GATE >&3)",
    "a subshell of a subshell": "exec 3>out; ( (echo one >&3) ); ( (cat GATE >&3; :); : )",
    "a here-document": "exec 3>out; cat >&3 <<END\none\nEND\nread x <GATE; cat >&3 <<END\n$x\nEND\n",
    "a here-document of a block": "{ cat; read x <GATE; echo $x; } >out <<END\none\nEND\n",
    "a child in the background": "exec 3>out; echo one >&3; cat GATE >&3 & exec 3>&-; wait",
    "a child that outlives the shell": "exec 3>out; echo one >&3; (trap '' HUP; cat GATE >&3) &",
    "a group in the background": "{ echo one; cat GATE; } >out & wait",
    "a session of its own": "exec 3>out; echo one >&3; setsid -f sh -c 'cat GATE >&3'",
    "a grandchild alone": "(exec 3>out; echo one >&3; (cat GATE >&3 &) )",
    "a pipeline": "{ echo one; cat GATE; } | { exec 3>out; while read x; do echo $x >&3; done; }",
    "a function": "f() { echo one; read x <GATE; echo $x; }; f >out",
    "find": "exec 3>out; echo one >&3; find GATE -exec cat {} \\; >&3",
    "xargs": "exec 3>out; printf '%s\\n' 'echo one' 'cat GATE' | xargs -d '\\n' -n 1 sh -c >&3",
    "printf": "exec 3>out; printf 'one\\n' >&3; printf '' >&3; read x <GATE; printf 'two\\n' >&3",
}

PYTHON = {
    "a duplicate": """
import os
fd = os.open('out', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'one\\n')
for _ in range(3): os.close(os.dup(fd))
os.write(fd, open('GATE').read().encode())
os.close(fd)""",
    "a thread": """
import os, threading
file = open('out', 'w')
def copy(): file.write('one\\n'); file.flush(); os.close(os.dup(file.fileno()))
thread = threading.Thread(target=copy); thread.start(); thread.join()
file.write(open('GATE').read())""",
    "a first thread that ends": """
import ctypes, os, threading
fd = os.open('out', os.O_WRONLY | os.O_CREAT)
first = threading.main_thread().native_id
def rest():
    while 'zombie' not in open('/proc/self/task/%d/status' % first).read(): pass
    os.write(fd, b'one\\n')
    os.close(os.dup(fd))
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    os.write(fd, open('GATE').read().encode())
    os.close(fd)
    os._exit(0)
threading.Thread(target=rest).start()
ctypes.CDLL(None).pthread_exit(None)""",
    "children": """
import subprocess
with open('out', 'w') as file:
    subprocess.check_call(['/bin/echo', 'one'], stdout=file)
    subprocess.check_call(['true'], pass_fds=[file.fileno()])
    subprocess.check_call(['cat', 'GATE'], stdout=file)""",
    "a second open": """
import os
first = open('out', 'w')
second = open('out', 'r+')
first.write('one\\n'); first.close()
second.seek(4); second.write(open('GATE').read())""",
    "a second open by a child": """
import os
first = os.open('out', os.O_WRONLY | os.O_CREAT)
told, tell = os.pipe()
if os.fork() == 0:
    second = os.open('out', os.O_WRONLY)
    os.close(first)
    os.write(tell, b'x')
    os.lseek(second, 4, 0)
    os.write(second, open('GATE').read().encode())
    os._exit(0)
os.read(told, 1)
os.write(first, b'one\\n')
os.close(first)
os.wait()""",
    "daemon of the C library": """
import ctypes, os
fd = os.open('out', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'one\\n')
assert ctypes.CDLL(None).daemon(1, 1) == 0
os.write(fd, open('GATE').read().encode())""",
    "a daemon in two steps": """
import os
fd = os.open('out', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'one\\n')
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(fd, open('GATE').read().encode())
    os._exit(0)
os.waitpid(child, 0)""",
    "a daemon that has not written, and a parent that has": """
import os
fd = os.open('out', os.O_WRONLY | os.O_CREAT)
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        text = open('GATE').read()
        os.write(fd, text.encode())
    os._exit(0)
os.waitpid(child, 0)
os.write(fd, b'one\\n')""",
    "an executed program": """
import os
fd = os.open('out', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'one\\n')
private = os.dup(fd)
os.set_inheritable(fd, True)
os.execvp('sh', ['sh', '-c', 'cat GATE >&%d' % fd])""",
    "hundreds of descriptors": """
import os
others = [os.open('/dev/null', os.O_RDWR) for _ in range(700)]
fd = os.open('out', os.O_WRONLY | os.O_CREAT)
others += [os.open('/dev/null', os.O_RDONLY) for _ in range(200)]
os.write(fd, b'one\\n')
os.close(os.dup(fd))
os.write(fd, open('GATE').read().encode())""",
}

PERL = {
    "a duplicate": """
open(my $out, '>', 'out'); open(my $copy, '>&', $out); $out->autoflush(1);
print $copy "one\\n"; close $copy;
open(my $gate, '<', 'GATE'); print {$out} <$gate>;""",
    "a daemon": """
use POSIX; open(my $out, '>', 'out'); $out->autoflush(1); print $out "one\\n";
exit if fork; POSIX::setsid(); exit if fork;
open(my $gate, '<', 'GATE'); print {$out} <$gate>;""",
    "system": """
open(STDOUT, '>', 'out'); system('/bin/echo', 'one'); system('cat', 'GATE');""",
}

NODE = {
    "children": """
const fs = require('fs'), { spawnSync } = require('child_process');
const fd = fs.openSync('out', 'w');
spawnSync('/bin/echo', ['one'], { stdio: ['ignore', fd, 'inherit'] });
spawnSync('cat', ['GATE'], { stdio: ['ignore', fd, 'inherit'] });""",
    "its own writes, and a child": """
const fs = require('fs'), { spawnSync } = require('child_process');
const fd = fs.openSync('out', 'w');
fs.writeSync(fd, 'one\\n');
spawnSync('true', [], { stdio: [fd, fd, fd] });
fs.writeSync(fd, fs.readFileSync('GATE'));
fs.closeSync(fd);""",
    "a child that outlives it": """
const fs = require('fs'), { spawn } = require('child_process');
const fd = fs.openSync('out', 'w');
fs.writeSync(fd, 'one\\n');
spawn('cat', ['GATE'], { stdio: ['ignore', fd, fd], detached: true }).unref();""",
}

JAVA = """
import java.io.*;
import java.util.*;
class Out {
    public static void main(String[] arguments) throws Exception {
        List<InputStream> others = new ArrayList<>();
        for (int i = 0; i < 400; i++) others.add(new FileInputStream("/dev/null"));
        FileOutputStream out = new FileOutputStream("out");
        List<OutputStream> more = new ArrayList<>();
        for (int i = 0; i < 100; i++) more.add(new FileOutputStream("/dev/null"));
        out.write("one\\n".getBytes());
        // The child closes its copies of all descriptors before it executes its program.
        new ProcessBuilder("true").start().waitFor();
        new ProcessBuilder("true").inheritIO().start().waitFor();
        try (InputStream gate = new FileInputStream("GATE")) { gate.transferTo(out); }
        out.close();
    }
}
"""

MAKEFILES = {
    "recipes": "all: first second\nfirst: ; @echo one\nsecond: first ; @cat GATE\n",
    "a recipe with a descriptor": "all: ; @exec 3>out; echo one >&3; read x <GATE; echo two >&3\n",
    "recipes in parallel": "all: a b c second\na b c: ; @sleep 0\nsecond: a b c ; @echo one; cat GATE\n",
}


def programs():
    """Yields the name and the command of each program."""
    for name, script in SHELL_SCRIPTS.items():
        for shell in SHELLS:
            yield f"{name} in {' '.join(shell)}", [*shell, "-ec", script]
    for name, text in PYTHON.items():
        yield f"{name} in python", ["/usr/bin/python3", "-c", text]
    for name, text in PERL.items():
        yield f"{name} in perl", ["perl", "-e", "use IO::Handle;" + text]
    for name, text in NODE.items():
        yield f"{name} in node", ["node", "-e", text]
    for number, (name, text) in enumerate(MAKEFILES.items()):
        path = f"{place}/makefile{number}"
        with open(path, "w") as makefile:
            makefile.write(text.replace("GATE", gate))
        jobs = ["-j4"] if "parallel" in name else []
        to = "" if "out" in text else " >out"
        yield f"{name} in make", ["sh", "-c", " ".join(["make -s -f", path, *jobs]) + to]
    os.makedirs(place + "/java", exist_ok=True)
    with open(place + "/java/Out.java", "w") as source:
        source.write(JAVA.replace("GATE", gate))
    subprocess.check_call(["javac", "-d", place + "/java", place + "/java/Out.java"])
    yield "hundreds of descriptors in java", ["java", "-cp", place + "/java", "Out"]


class Recorder(threading.Thread):
    """Reads the folder again and again, and keeps each content of each file."""

    def __init__(self):
        super().__init__(daemon=True)
        self.states, self.is_over = set(), False
        self.start()

    def run(self):
        while not self.is_over:
            for name in os.listdir(folder):
                try:
                    if name != ".latchfs":
                        with open(f"{folder}/{name}", "rb") as file:
                            self.states.add((name, file.read()))
                except FileNotFoundError:
                    pass
            time.sleep(0)


def eventually(name, check):
    for _ in range(3_000):
        result = check()
        if result:
            return result
        time.sleep(0.01)
    raise SystemExit(f"{name}: it was never {check.__name__}")


def run(name, command):
    command = [word.replace("GATE", gate) for word in command]
    child = subprocess.Popen(command, cwd=view, stdin=subprocess.DEVNULL)

    # The gate can be opened when the program, which has written `one`, waits for it.
    def waiting():
        if child.poll():
            raise SystemExit(f"{name}: {command} ended with {child.returncode}")
        try:
            return os.fdopen(os.open(gate, os.O_WRONLY | os.O_NONBLOCK), "w")
        except OSError:
            return None

    with eventually(name, waiting) as opened:

        def half_written():
            try:
                with open(view + "/out") as file:
                    return file.read() == "one\n"
            except FileNotFoundError:
                return False

        eventually(name, half_written)
        if os.path.exists(out):
            with open(out) as file:
                raise SystemExit(f"{name}: the folder has {file.read()!r} too early")
        opened.write("two\n")
    if child.wait() != 0:
        raise SystemExit(f"{name}: {command} ended with {child.returncode}")

    # The last close of a program that outlives the first one comes later.
    def published():
        return os.path.exists(out)

    eventually(name, published)
    with open(out) as file:
        text = file.read()
    if text != "one\ntwo\n":
        raise SystemExit(f"{name}: {text!r}")
    os.remove(view + "/out")


os.mkfifo(gate)
recorder, count = Recorder(), 0
for name, command in programs():
    missing = [word for word in command[:1] if not shutil.which(word)]
    if missing:
        raise SystemExit(f"{name}: {missing[0]} is missing")
    run(name, command)
    count += 1
recorder.is_over = True
recorder.join()
if recorder.states != {("out", b"one\ntwo\n")}:
    raise SystemExit(f"the folder had {recorder.states}")
print(count, "programs")
