/* Stands between a server and the kernel (LD_PRELOAD), for the files below SHIM_DIR:
 *
 * SHIM_TRACE=FILE  writes down what is done to them, and what is sent to clients, in order;
 * SHIM_FAIL=FILE   once that file is there, syncs fail with EIO, and each attempt adds a byte to it.
 *
 * A record is: a letter, then two strings and a number, each string behind its length.
 * C path          a file was made        W path data offset  bytes were written (-1: at its end)
 * S path          it was synced          T path "" length    it was cut
 * R from to       it was renamed         U path              it was removed
 * M path          a directory was made   K "" data           bytes were sent to a client
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static int trace = -2;

static void put(const void *bytes, size_t length) {
    const char *at = bytes;
    while (length > 0) {
        ssize_t done = syscall(SYS_write, trace, at, length);
        if (done <= 0) abort();
        at += done;
        length -= done;
    }
}

static void note(char letter, const char *path, const struct iovec *parts, int count, size_t limit,
                 int64_t number) {
    const char *file = getenv("SHIM_TRACE");
    if (!file) return;
    pthread_mutex_lock(&order);
    if (trace == -2) trace = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    uint32_t length = strlen(path), data = 0;
    for (int i = 0; i < count; i++) data += parts[i].iov_len;
    if (data > limit) data = limit;
    put(&letter, 1);
    put(&length, 4);
    put(path, length);
    put(&data, 4);
    for (int i = 0; i < count && data > 0; i++) {
        size_t part = parts[i].iov_len < data ? parts[i].iov_len : data;
        put(parts[i].iov_base, part);
        data -= part;
    }
    put(&number, 8);
    pthread_mutex_unlock(&order);
}

static int ours(const char *path) {
    const char *dir = getenv("SHIM_DIR");
    return dir && strncmp(path, dir, strlen(dir)) == 0;
}

/* The path of an open file of ours. */
static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return ours(path);
}

static int is_socket(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
}

static void absolute(const char *path, char *whole) {
    if (path[0] == '/' || !getcwd(whole, PATH_MAX / 2)) {
        snprintf(whole, PATH_MAX, "%s", path);
    } else {
        size_t length = strlen(whole);
        snprintf(whole + length, PATH_MAX - length, "/%s", path);
    }
}

/* Notes bytes before they are written: a part of them may be there even if the call never ends. */
static void note_write(int fd, const struct iovec *parts, int count, int64_t offset) {
    char path[PATH_MAX];
    if (is_socket(fd)) {
        note('K', "", parts, count, SIZE_MAX, 0);
    } else if (path_of(fd, path)) {
        note('W', path, parts, count, SIZE_MAX, offset);
    }
}

static int open_noted(int dir, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    int made = 0;
    absolute(path, whole);
    if ((flags & O_CREAT) && ours(whole)) made = access(whole, F_OK) != 0;
    int fd = syscall(SYS_openat, dir, path, flags, mode);
    if (fd >= 0 && made) note('C', whole, NULL, 0, 0, 0);
    if (fd >= 0 && !made && (flags & O_TRUNC) && ours(whole)) note('T', whole, NULL, 0, 0, 0);
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_noted(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_noted(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags) return open_noted(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return open_noted(dir, path, flags, mode); }

ssize_t write(int fd, const void *bytes, size_t length) {
    struct iovec part = {(void *)bytes, length};
    note_write(fd, &part, 1, -1);
    return syscall(SYS_write, fd, bytes, length);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    note_write(fd, parts, count, -1);
    return syscall(SYS_writev, fd, parts, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    struct iovec part = {(void *)bytes, length};
    note_write(fd, &part, 1, offset);
    return syscall(SYS_pwrite64, fd, bytes, length, offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return pwrite64(fd, bytes, length, offset); }

ssize_t send(int fd, const void *bytes, size_t length, int flags) {
    struct iovec part = {(void *)bytes, length};
    note_write(fd, &part, 1, -1);
    return syscall(SYS_sendto, fd, bytes, length, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    note_write(fd, message->msg_iov, message->msg_iovlen, -1);
    return syscall(SYS_sendmsg, fd, message, flags);
}

static int sync_noted(int fd, long call) {
    char path[PATH_MAX];
    int is_ours = path_of(fd, path);
    const char *fail = getenv("SHIM_FAIL");
    if (is_ours && fail && access(fail, F_OK) == 0) {
        int count = syscall(SYS_openat, AT_FDCWD, fail, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
        syscall(SYS_write, count, "!", 1);
        syscall(SYS_close, count);
        errno = EIO;
        return -1;
    }
    int result = syscall(call, fd);
    if (result == 0 && is_ours) note('S', path, NULL, 0, 0, 0);
    return result;
}

int fsync(int fd) { return sync_noted(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_noted(fd, SYS_fdatasync); }

static int cut_noted(int fd, off64_t length) {
    char path[PATH_MAX];
    int result = syscall(SYS_ftruncate, fd, length);
    if (result == 0 && path_of(fd, path)) note('T', path, NULL, 0, 0, length);
    return result;
}

int ftruncate(int fd, off_t length) { return cut_noted(fd, length); }
int ftruncate64(int fd, off64_t length) { return cut_noted(fd, length); }

int rename(const char *from, const char *to) {
    char old[PATH_MAX], new[PATH_MAX];
    absolute(from, old);
    absolute(to, new);
    int result = syscall(SYS_rename, from, to);
    struct iovec part = {new, strlen(new)};
    if (result == 0 && ours(old)) note('R', old, &part, 1, SIZE_MAX, 0);
    return result;
}

int unlink(const char *path) {
    char whole[PATH_MAX];
    absolute(path, whole);
    int result = syscall(SYS_unlink, path);
    if (result == 0 && ours(whole)) note('U', whole, NULL, 0, 0, 0);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    char whole[PATH_MAX];
    absolute(path, whole);
    int result = syscall(SYS_mkdir, path, mode);
    if (result == 0 && ours(whole)) note('M', whole, NULL, 0, 0, 0);
    return result;
}
