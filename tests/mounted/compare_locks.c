/*
 * Runs programs of file locks on two directories and compares every result.
 *
 * A program is a list of steps of up to four processes: open, dup, close, fork, exec, exit, flock,
 * POSIX and OFD locks, F_GETLK and signals. One process at a time makes one system call, so that the
 * results of a program depend on nothing but the file system. The first directory, on tmpfs, says
 * what is right. Programs are drawn from a seed, or read from a file, one step a line.
 *
 *     compare TMPFS MOUNT seeds FIRST COUNT [LEFT_OUT]
 *     compare TMPFS MOUNT program FILE
 *
 * Exits with 0 if there is no difference, 1 if there is one, and 2 if it can't run. LEFT_OUT are
 * kinds of steps that are not drawn, separated by commas.
 *
 * Left out of all programs, since the results differ on purpose (README, contrib/doc/files.md):
 * - flock and fcntl locks of one file conflict on a mount, as on NFS: each file has only one kind.
 * - A free lock has no file: every open says O_CREAT.
 * - Waiting is in a queue: while a process waits for a file, no other asks for a lock of that file.
 * - Deadlocks between mounts: only one process waits at a time.
 * - A file that was made with O_EXCL, or has text, has a lease of its own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TASKS = 4, SLOTS = 5, FILES = 3, STEPS_MAX = 100, LOCKS_MAX = 32, FIRST_FD = 3, CHANNEL_FD = 20 };
/* How long a call on the mount may take that ends at once on tmpfs, in ms. */
enum { PATIENCE = 2000 };

enum kind { OPEN, CLOSE, DUP, CLOEXEC, FLOCK, SET, OFD, GET, OGET, WRITE, FORK, EXEC, EXIT, SIGNAL, KILL,
            KINDS };
static const char *NAMES[KINDS] = { "open", "close", "dup", "cloexec", "flock", "posix", "ofd",
    "getlk", "ofd-getlk", "write", "fork", "exec", "exit", "signal", "kill" };

/* One step. `arg` depends on the kind: see `show`. */
struct step { int task, kind; long arg[5]; };
/* What a call returned, and for F_GETLK the lock that it found. */
struct result { int done, value, error, type; long start, length; int pid; };
enum { SKIPPED, RETURNED, WAITS, NO_ANSWER };

static const int OPEN_MODES[] = { O_RDONLY, O_WRONLY, O_RDWR, O_RDWR | O_EXCL };
static const char *MODE_NAMES[] = { "r", "w", "rw", "rw-excl" };
static const int LOCK_TYPES[] = { F_RDLCK, F_WRLCK, F_UNLCK };
static const char *TYPE_NAMES[] = { "read", "write", "unlock" };
static const int FLOCK_TYPES[] = { LOCK_SH, LOCK_EX, LOCK_UN };

static void die(const char *what)
{
    perror(what);
    exit(2);
}

/* ---- A process of a program: makes the calls that it is told. ---- */

static void placeholder(int fd)
{
    if (open("/dev/null", O_RDONLY) != fd) die("a descriptor has another number");
}

static void caught(int number) { (void)number; }

static struct result locked(const struct step *step, int fd)
{
    struct flock lock = { .l_type = LOCK_TYPES[step->arg[1]], .l_whence = SEEK_SET,
                          .l_start = step->arg[2], .l_len = step->arg[3] };
    int command = F_GETLK;
    if (step->kind == SET) command = step->arg[4] ? F_SETLKW : F_SETLK;
    if (step->kind == OFD) command = step->arg[4] ? F_OFD_SETLKW : F_OFD_SETLK;
    if (step->kind == OGET) command = F_OFD_GETLK;
    struct result said = { .done = RETURNED, .value = fcntl(fd, command, &lock), .type = F_UNLCK };
    said.error = said.value < 0 ? errno : 0;
    if ((step->kind == GET || step->kind == OGET) && said.value == 0) {
        said.type = lock.l_type;
        if (lock.l_type != F_UNLCK) {
            said.start = lock.l_start;
            said.length = lock.l_len;
            said.pid = lock.l_pid;
        }
    }
    return said;
}

static struct result obey(const struct step *step, int *channel)
{
    struct result said = { .done = RETURNED, .type = F_UNLCK };
    int fd = FIRST_FD + (int)step->arg[0];
    char name[2] = { (char)('a' + step->arg[1]), 0 };
    switch (step->kind) {
    case OPEN: /* the lowest free number is that of the slot */
        close(fd);
        said.value = open(name, O_CREAT | OPEN_MODES[step->arg[2]], 0644);
        said.error = said.value < 0 ? errno : 0;
        if (said.value < 0) placeholder(fd);
        else said.value = said.value == fd ? 0 : 1;
        break;
    case CLOSE:
        said.value = close(fd);
        said.error = said.value < 0 ? errno : 0;
        placeholder(fd);
        break;
    case DUP:
        close(FIRST_FD + (int)step->arg[1]);
        said.value = dup(fd) == FIRST_FD + step->arg[1] ? 0 : -1;
        break;
    case CLOEXEC:
        said.value = fcntl(fd, F_SETFD, FD_CLOEXEC);
        break;
    case FLOCK:
        said.value = flock(fd, FLOCK_TYPES[step->arg[1]] | (step->arg[4] ? 0 : LOCK_NB));
        said.error = said.value < 0 ? errno : 0;
        break;
    case WRITE:
        said.value = (int)pwrite(fd, "text\n", 5, 0);
        said.error = said.value < 0 ? errno : 0;
        break;
    case FORK:
        said.value = fork();
        if (said.value < 0) die("fork");
        if (said.value == 0) *channel = CHANNEL_FD + (int)step->arg[0];
        break;
    default:
        said = locked(step, fd);
    }
    return said;
}

static void serve(int channel)
{
    struct step step;
    while (read(channel, &step, sizeof step) == sizeof step) {
        if (step.kind == EXIT) _exit(0);
        if (step.kind == EXEC) {
            char text[12];
            snprintf(text, sizeof text, "%d", channel);
            execl("/proc/self/exe", "compare", "--serve", text, (char *)NULL);
            die("exec");
        }
        int before = channel;
        struct result said = obey(&step, &channel);
        /* A new process has another channel, and answers there. */
        if (write(channel, &said, sizeof said) != sizeof said) _exit(0);
        if (before != channel && step.kind != FORK) _exit(2);
    }
    _exit(0);
}

static void prepare_process(void)
{
    struct sigaction on_signal = { .sa_handler = caught };
    sigaction(SIGUSR1, &on_signal, NULL);
    signal(SIGCHLD, SIG_IGN);
    for (int fd = FIRST_FD; fd < FIRST_FD + SLOTS; fd++)
        if (fcntl(fd, F_GETFD) < 0) placeholder(fd);
}

/* ---- The controller: runs a program in one directory. ---- */

struct task { int alive, waits, pid, ended, slots[SLOTS], closes[SLOTS]; long file; };
static struct task tasks[TASKS];
static int ends[TASKS]; /* this process's ends of the channels */

static int answer_within(int task, int ms, struct result *said)
{
    struct pollfd ready = { .fd = ends[task], .events = POLLIN };
    if (poll(&ready, 1, ms) != 1) return 0;
    if (read(ends[task], said, sizeof *said) != sizeof *said) die("a process has died");
    return 1;
}

/* Whether a process sleeps in a call for a lock. */
static int sleeps(int pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *state = strrchr(text, ')');
    if (!state || state[1] == 0 || !strchr("SD", state[2])) return 0;
    snprintf(path, sizeof path, "/proc/%d/syscall", pid);
    if (!(file = fopen(path, "r"))) return 0;
    long number = -1;
    int found = fscanf(file, "%ld", &number);
    fclose(file);
    return found == 1 && (number == SYS_fcntl || number == SYS_flock);
}

/* Waits until a call has returned, or its process sleeps in it. On the mount a process also sleeps
 * while the daemon works, so that what tmpfs did decides how long to wait. */
static struct result outcome(int task, const struct result *wanted)
{
    struct result said = { .type = F_UNLCK };
    for (int ms = 0; ms < PATIENCE; ms++) {
        if (answer_within(task, 1, &said)) return said;
        int may_wait = !wanted || wanted->done == WAITS;
        if (may_wait && sleeps(tasks[task].pid)) {
            if (answer_within(task, 0, &said)) return said;
            said.done = WAITS;
            return said;
        }
    }
    said.done = NO_ANSWER;
    return said;
}

static void begin(int task, int pid)
{
    tasks[task].alive = 1;
    tasks[task].waits = 0;
    tasks[task].pid = pid;
    tasks[task].ended = (int)syscall(SYS_pidfd_open, pid, 0);
    if (tasks[task].ended < 0) die("pidfd_open");
}

static void reap(int task)
{
    struct pollfd ended = { .fd = tasks[task].ended, .events = POLLIN };
    if (poll(&ended, 1, PATIENCE) != 1) die("a process does not end");
    close(tasks[task].ended);
    tasks[task].alive = 0;
    waitpid(tasks[task].pid, NULL, 0);
}

static void start(const char *dir)
{
    int channels[TASKS][2];
    for (int task = 0; task < TASKS; task++) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channels[task])) die("socketpair");
        ends[task] = channels[task][0];
        memset(&tasks[task], 0, sizeof tasks[task]);
        memset(tasks[task].slots, -1, sizeof tasks[task].slots);
    }
    int pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        if (chdir(dir)) die(dir);
        for (int task = 0; task < TASKS; task++)
            if (fcntl(channels[task][1], F_DUPFD, 100 + task) != 100 + task) die("dup");
        for (int fd = FIRST_FD; fd < 100; fd++) close(fd);
        for (int task = 0; task < TASKS; task++) dup2(100 + task, CHANNEL_FD + task);
        for (int task = 0; task < TASKS; task++) close(100 + task);
        prepare_process();
        serve(CHANNEL_FD);
    }
    for (int task = 0; task < TASKS; task++) close(channels[task][1]);
    begin(0, pid);
}

static void finish(const char *dir)
{
    for (int task = 0; task < TASKS; task++) {
        if (tasks[task].alive) {
            kill(tasks[task].pid, SIGKILL);
            reap(task);
        }
        close(ends[task]);
    }
    for (int file = 0; file < FILES; file++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + file);
        unlink(path);
    }
}

/* The file whose lock a step asks for, or -1. */
static int asks_for(const struct step *step)
{
    long slot = step->arg[0];
    if (step->kind != FLOCK && step->kind != SET && step->kind != OFD) return -1;
    return step->arg[1] == 2 ? -1 : tasks[step->task].slots[slot];
}

static int is_last(int task)
{
    for (int other = 0; other < TASKS; other++)
        if (other != task && tasks[other].alive) return 0;
    return 1;
}

/* Steps that are not drawn: names of steps, or `excl`. */
static const char *left_out = "";

static int is_left_out(const char *word)
{
    size_t length = strlen(word);
    for (const char *at = left_out; (at = strstr(at, word)); at += length)
        if ((at == left_out || at[-1] == ',') && (at[length] == 0 || at[length] == ',')) return 1;
    return 0;
}

/* Whether programs are drawn, and so leave something out. */
static int random_programs;

/* Whether a step makes no sense in the present state, or may not be made while a process waits. */
static int is_skipped(const struct step *step)
{
    const struct task *task = &tasks[step->task];
    int waiting = -1;
    for (int other = 0; other < TASKS; other++)
        if (tasks[other].alive && tasks[other].waits) waiting = other;
    if (step->kind == SIGNAL) return !task->alive || !task->waits;
    if (step->kind == KILL) return !task->alive || is_last(step->task);
    if (!task->alive || task->waits) return 1;
    if (step->kind == FORK) return tasks[step->arg[0]].alive;
    if (step->kind == EXEC) return 0;
    if (step->kind == EXIT) return is_last(step->task);
    int file = task->slots[step->arg[0]];
    if (step->kind == OPEN) return file >= 0;
    if (file < 0) return 1;
    if (step->kind == DUP) return task->slots[step->arg[1]] >= 0;
    /* Of one kind each: flock of `a`, fcntl of the others. */
    if (step->kind == FLOCK && file != 0) return 1;
    if (step->kind >= SET && step->kind <= OGET && file == 0) return 1;
    int wanted = asks_for(step);
    return random_programs && waiting >= 0 && wanted >= 0
        && (step->arg[4] || wanted == tasks[waiting].file);
}

static void note(const struct step *step, struct result *said)
{
    struct task *task = &tasks[step->task];
    long slot = step->arg[0];
    switch (step->kind) {
    case OPEN:
        if (said->value == 0) task->slots[slot] = (int)step->arg[1], task->closes[slot] = 0;
        break;
    case CLOSE:
        task->slots[slot] = -1;
        break;
    case DUP:
        task->slots[step->arg[1]] = task->slots[slot], task->closes[step->arg[1]] = 0;
        break;
    case CLOEXEC:
        task->closes[slot] = 1;
        break;
    case FORK:
        tasks[slot] = *task;
        begin((int)slot, said->value);
        said->value = 0;
        break;
    }
}

/* Which process a lock belongs to, or -1 for an open file. */
static int number_of(int pid)
{
    for (int task = 0; task < TASKS; task++)
        if (tasks[task].alive && tasks[task].pid == pid) return task;
    return pid <= 0 ? -1 : 100;
}

static struct result make(const struct step *step, const struct result *wanted)
{
    struct result said = { .done = RETURNED, .type = F_UNLCK };
    struct task *task = &tasks[step->task];
    if (wanted ? wanted->done == SKIPPED : is_skipped(step)) {
        said.done = SKIPPED;
        return said;
    }
    if (step->kind == SIGNAL || step->kind == KILL) {
        kill(task->pid, step->kind == KILL ? SIGKILL : SIGUSR1);
        if (step->kind == KILL) reap(step->task);
        return said;
    }
    int file = asks_for(step);
    if (write(ends[step->task], step, sizeof *step) != sizeof *step) die("write to a process");
    if (step->kind == EXIT) {
        reap(step->task);
        return said;
    }
    said = outcome(step->task, wanted);
    if (said.done == WAITS) task->waits = 1, task->file = file;
    if (said.done != RETURNED) return said;
    if (step->kind == FORK) {
        struct result begun;
        note(step, &said);
        if (!answer_within((int)step->arg[0], PATIENCE, &begun)) die("a new process says nothing");
    } else {
        note(step, &said);
    }
    if (step->kind == EXEC)
        for (int slot = 0; slot < SLOTS; slot++)
            if (task->closes[slot]) task->slots[slot] = -1, task->closes[slot] = 0;
    if (said.type != F_UNLCK) said.pid = number_of(said.pid);
    return said;
}

/* What became of each process that waits, after a step. On tmpfs a process is awake before the call
 * that woke it returns, so that it need only be seen at rest. */
static struct result later(int task, const struct result *wanted)
{
    struct result said = { .done = SKIPPED, .type = F_UNLCK };
    if (!tasks[task].alive || !tasks[task].waits) return said;
    if (wanted && wanted->done == WAITS) {
        if (!answer_within(task, 0, &said)) said.done = WAITS;
    } else {
        said = outcome(task, wanted);
    }
    if (said.done == RETURNED) tasks[task].waits = 0;
    return said;
}

struct trace {
    struct result now[STEPS_MAX], then[STEPS_MAX][TASKS];
    /* After each F_GETLK that found a lock: all locks of the file, of which any may be told. */
    struct result found[STEPS_MAX][LOCKS_MAX];
};

static int same(const struct result *a, const struct result *b)
{
    return a->done == b->done && a->value == b->value && a->error == b->error &&
           a->type == b->type && a->start == b->start && a->length == b->length;
}

/* ---- Programs: drawn, run, read and shown. ---- */

static uint64_t state;

static int below(int end)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t mixed = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return (int)((mixed ^ (mixed >> 31)) % (uint64_t)end);
}

static const int WEIGHTS[KINDS] = { 10, 6, 4, 1, 14, 16, 14, 5, 5, 2, 6, 2, 1, 6, 1 };

static void draw_any(struct step *step)
{
    static const int STARTS[] = { 0, 0, 0, 1, 3, 5, 10 }, LENGTHS[] = { 0, 0, 1, 2, 5, 10 };
    int sum = 0;
    for (int kind = 0; kind < KINDS; kind++) sum += WEIGHTS[kind];
    do {
        int drawn = below(sum);
        memset(step, 0, sizeof *step);
        while (drawn >= WEIGHTS[step->kind]) drawn -= WEIGHTS[step->kind++];
    } while (is_left_out(NAMES[step->kind]));
    step->task = below(TASKS);
    step->arg[0] = below(step->kind == FORK ? TASKS : SLOTS);
    switch (step->kind) {
    case OPEN:
        step->arg[1] = below(FILES);
        step->arg[2] = below(8) < 5 ? 2 : below(is_left_out("excl") ? 3 : 4);
        break;
    case DUP:
        step->arg[1] = below(SLOTS);
        break;
    case FLOCK: case SET: case OFD: case GET: case OGET:
        step->arg[1] = below(3);
        step->arg[2] = STARTS[below(7)];
        step->arg[3] = LENGTHS[below(6)];
        step->arg[4] = below(3) == 0;
        if (step->arg[1] == 2 && step->kind == GET) step->arg[1] = 1;
        break;
    }
}

/* Draws a step that makes sense in the present state, if one is found soon. */
static void draw(struct step *step)
{
    int tries = 0;
    do draw_any(step);
    while (is_skipped(step) && ++tries < 100);
}

/* Lists the locks of a file on tmpfs. */
static void list_locks(const char *dir, int file, struct result *found)
{
    char path[4096], line[256], family[16], mode[16], type[16], end[32];
    struct stat stat_of;
    int count = 0;
    snprintf(path, sizeof path, "%s/%c", dir, 'a' + file);
    if (stat(path, &stat_of)) die(path);
    FILE *locks = fopen("/proc/locks", "r");
    if (!locks) die("/proc/locks");
    while (fgets(line, sizeof line, locks) && count < LOCKS_MAX) {
        unsigned long inode;
        long first;
        int pid;
        if (sscanf(line, "%*d: %15s %15s %15s %d %*x:%*x:%lu %ld %31s", family, mode, type, &pid,
                   &inode, &first, end) != 7 || inode != stat_of.st_ino) continue;
        found[count] = (struct result){ .done = RETURNED, .start = first, .pid = number_of(pid),
                                        .type = *type == 'R' ? F_RDLCK : F_WRLCK };
        found[count++].length = *end == 'E' ? 0 : atol(end) + 1 - first;
    }
    fclose(locks);
}

/* Whether the mount answers as tmpfs did. F_GETLK may tell any of the locks in the way. The kernel
 * asks a daemon for a process id only: it can't say that an open file has the lock, and tells no
 * process id to F_OFD_GETLK. */
static int agrees(const struct step *step, const struct trace *wanted, int at,
                  const struct result *said)
{
    if (same(said, &wanted->now[at]) && step->kind != GET) return 1;
    if (step->kind != GET && step->kind != OGET) return 0;
    if (wanted->now[at].type == F_UNLCK || said->type == F_UNLCK)
        return same(said, &wanted->now[at]);
    for (int lock = 0; lock < LOCKS_MAX; lock++) {
        const struct result *found = &wanted->found[at][lock];
        if (same(found, said) && (step->kind == OGET || found->pid < 0 || found->pid == said->pid))
            return 1;
    }
    return 0;
}

/* Runs a program, which is drawn meanwhile if `draws`. With the trace of a run on tmpfs, returns the
 * first step with another result, or -1. */
static int run(const char *dir, struct step *steps, int count, struct trace *trace,
               const struct trace *wanted, int draws)
{
    int differs = -1;
    start(dir);
    memset(trace, 0, sizeof *trace);
    for (int at = 0; at < count && differs < 0; at++) {
        if (draws) draw(&steps[at]);
        trace->now[at] = make(&steps[at], wanted ? &wanted->now[at] : NULL);
        if (wanted && !agrees(&steps[at], wanted, at, &trace->now[at])) {
            differs = at;
            break;
        }
        if (!wanted && trace->now[at].type != F_UNLCK && trace->now[at].done == RETURNED)
            list_locks(dir, tasks[steps[at].task].slots[steps[at].arg[0]], trace->found[at]);
        for (int task = 0; task < TASKS; task++) {
            struct result *then = &trace->then[at][task];
            *then = later(task, wanted ? &wanted->then[at][task] : NULL);
            if (wanted && !same(then, &wanted->then[at][task])) differs = at;
        }
    }
    finish(dir);
    return differs;
}

static void show(const struct step *step)
{
    const long *arg = step->arg;
    printf("%d %s", step->task, NAMES[step->kind]);
    switch (step->kind) {
    case OPEN:
        printf(" %ld %c %s", arg[0], (char)('a' + arg[1]), MODE_NAMES[arg[2]]);
        break;
    case DUP:
        printf(" %ld %ld", arg[0], arg[1]);
        break;
    case FLOCK:
        printf(" %ld %s%s", arg[0], TYPE_NAMES[arg[1]], arg[4] ? " wait" : "");
        break;
    case SET: case OFD: case GET: case OGET:
        printf(" %ld %s %ld %ld", arg[0], TYPE_NAMES[arg[1]], arg[2], arg[3]);
        if (arg[4] && (step->kind == SET || step->kind == OFD)) printf(" wait");
        break;
    case EXEC: case EXIT: case SIGNAL: case KILL:
        break;
    default:
        printf(" %ld", arg[0]);
    }
}

static int index_of(const char *word, const char *const *words, int count)
{
    for (int at = 0; at < count; at++)
        if (!strcmp(word, words[at])) return at;
    fprintf(stderr, "unknown word '%s'\n", word);
    exit(2);
}

static int read_program(const char *path, struct step *steps)
{
    char line[200], kind[20], words[4][20];
    int count = 0;
    FILE *file = fopen(path, "r");
    if (!file) die(path);
    while (fgets(line, sizeof line, file) && count < STEPS_MAX) {
        struct step *step = &steps[count];
        memset(step, 0, sizeof *step);
        memset(words, 0, sizeof words);
        char *text = strtok(line, "#\n");
        if (!text || sscanf(text, "%d %19s %ld %19s %19s %19s %19s", &step->task, kind,
                            &step->arg[0], words[0], words[1], words[2], words[3]) < 2) continue;
        step->kind = index_of(kind, NAMES, KINDS);
        count++;
        if (step->kind == OPEN) {
            step->arg[1] = words[0][0] - 'a';
            step->arg[2] = index_of(words[1], MODE_NAMES, 4);
        } else if (step->kind == DUP) {
            step->arg[1] = atoi(words[0]);
        } else if (step->kind == FLOCK) {
            step->arg[1] = index_of(words[0], TYPE_NAMES, 3);
            step->arg[4] = words[1][0] == 'w';
        } else if (step->kind >= SET && step->kind <= OGET) {
            step->arg[1] = index_of(words[0], TYPE_NAMES, 3);
            step->arg[2] = atol(words[1]);
            step->arg[3] = atol(words[2]);
            step->arg[4] = words[3][0] == 'w';
        }
    }
    fclose(file);
    return count;
}

static void show_result(const struct result *said)
{
    static const char *DONE[] = { "nothing", "returned", "waits", "no answer" };
    printf("%s", DONE[said->done]);
    if (said->done != RETURNED) return;
    if (said->error) printf(" %s", strerrorname_np(said->error));
    else printf(" %d", said->value);
    if (said->type != F_UNLCK)
        printf(" (%s %ld+%ld of %d)", said->type == F_RDLCK ? "read" : "write", said->start,
               said->length, said->pid);
}

static void show_outcome(const char *before, const struct trace *trace, int at)
{
    printf("%s", before);
    show_result(&trace->now[at]);
    for (int task = 0; task < TASKS; task++) {
        if (trace->then[at][task].done == SKIPPED) continue;
        printf("; process %d ", task);
        show_result(&trace->then[at][task]);
    }
    printf("\n");
}

/* Runs a program on both. Returns whether there is a difference, in `at` its step. */
static int compare(const char *tmpfs, const char *mount, struct step *steps, int count, int *at,
                   struct trace *wanted, struct trace *seen, int draws)
{
    run(tmpfs, steps, count, wanted, NULL, draws);
    *at = run(mount, steps, count, seen, wanted, 0);
    return *at >= 0;
}

static void show_program(const struct step *steps, int at, const struct trace *wanted,
                         const struct trace *seen)
{
    for (int step = 0; step <= at; step++) {
        if (wanted->now[step].done == SKIPPED) continue;
        show(&steps[step]);
        show_outcome("   # ", wanted, step);
    }
    show_outcome("# on the mount: ", seen, at);
}

/* Runs a program on both. A difference is printed with the steps that it needs. */
static int report(const char *tmpfs, const char *mount, struct step *steps, int count, int draws)
{
    static struct trace wanted, seen, first_wanted, first_seen;
    struct step fewer[STEPS_MAX], first[STEPS_MAX];
    int at, first_at;
    if (!compare(tmpfs, mount, steps, count, &at, &wanted, &seen, draws)) return 0;
    count = random_programs ? at + 1 : 0;
    memcpy(first, steps, sizeof first);
    first_at = at, first_wanted = wanted, first_seen = seen;
    for (int left = count - 1; left >= 0; left--) {
        memcpy(fewer, steps, sizeof *steps * (size_t)left);
        memcpy(fewer + left, steps + left + 1, sizeof *steps * (size_t)(count - left - 1));
        if (compare(tmpfs, mount, fewer, count - 1, &at, &wanted, &seen, 0)) {
            count = at + 1;
            memcpy(steps, fewer, sizeof *steps * (size_t)count);
            if (left > count) left = count;
        }
    }
    if (count && compare(tmpfs, mount, steps, count, &at, &wanted, &seen, 0)) {
        show_program(steps, at, &wanted, &seen);
    } else {
        if (count) printf("# does not repeat\n");
        show_program(first, first_at, &first_wanted, &first_seen);
    }
    return 1;
}

int main(int argc, char **argv)
{
    static struct step steps[STEPS_MAX];
    if (argc == 3 && !strcmp(argv[1], "--serve")) {
        struct result said = { .done = RETURNED, .type = F_UNLCK };
        int channel = atoi(argv[2]);
        prepare_process();
        if (write(channel, &said, sizeof said) != sizeof said) return 2;
        serve(channel);
    }
    if (argc < 5) {
        fprintf(stderr, "usage: compare TMPFS MOUNT seeds FIRST COUNT [LEFT_OUT] | program FILE\n");
        return 2;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(argv[3], "program"))
        return report(argv[1], argv[2], steps, read_program(argv[4], steps), 0);
    uint64_t first = strtoull(argv[4], NULL, 10), runs = strtoull(argv[5], NULL, 10);
    int differences = 0;
    random_programs = 1;
    if (argc > 6) left_out = argv[6];
    for (uint64_t seed = first; seed < first + runs; seed++) {
        state = seed;
        if (!report(argv[1], argv[2], steps, 30 + below(50), 1)) continue;
        printf("# seed %llu\n\n", (unsigned long long)seed);
        if (++differences == 20) break;
    }
    printf("%d differences\n", differences);
    return differences > 0;
}
