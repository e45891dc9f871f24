/* Makes system calls on files below a path fail, as a stale mount, a full quota or a broken disk would.

   Preloaded into a program (LD_PRELOAD), with the control block in the file that FAILING_CALLS names. Another
   process changes the block while the program runs. `left` says how many calls are still to fail; without any, all
   calls pass. Only calls of the kinds in `kinds`, on paths that begin with `prefix`, are concerned. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, CREATE = 2, WRITE = 4, FLUSH = 8, NAME = 16, LOOK = 32, READ = 64 };

struct control {
    int64_t left;       /* calls that are still to fail; negative: all */
    int64_t failed;     /* calls that failed */
    uint32_t error;     /* errno */
    uint32_t kinds;     /* of calls */
    uint32_t share;     /* of these calls that fail, of 1000 */
    uint32_t unused;
    char last[512];     /* path of the last one that failed */
    char prefix[512];
};

static struct control *control;

static int (*real_open)(const char *, int, ...);

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    real_open = real("open");
    const char *file = getenv("FAILING_CALLS");
    int descriptor = file ? real_open(file, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (found != MAP_FAILED) control = found;
}

static int fails(const char *path, uint32_t kind) {
    static __thread uint32_t random;
    if (!control || !path || !(control->kinds & kind) || control->left == 0) return 0;
    if (strncmp(path, control->prefix, strlen(control->prefix))) return 0;
    if (!random) random = (uint32_t)getpid() * 2654435761u + (uint32_t)(uintptr_t)&random + 1;
    random = random * 1664525u + 1013904223u;
    if ((random >> 8) % 1000 >= control->share) return 0;
    if (control->left > 0 && __sync_fetch_and_sub(&control->left, 1) <= 0) {
        control->left = 0;
        return 0;
    }
    snprintf(control->last, sizeof control->last, "%s", path);
    __sync_fetch_and_add(&control->failed, 1);
    errno = (int)control->error;
    return 1;
}

static int fails_at(int base, const char *path, uint32_t kind) {
    char link[64], whole[PATH_MAX * 2];
    if (!control || !path || control->left == 0 || path[0] == '/' || base == AT_FDCWD) return fails(path, kind);
    snprintf(link, sizeof link, "/proc/self/fd/%d", base);
    ssize_t size = readlink(link, whole, PATH_MAX - 1);
    if (size < 0) return 0;
    snprintf(whole + size, sizeof whole - (size_t)size, "/%s", path);
    return fails(whole, kind);
}

static int fails_in(int descriptor, uint32_t kind) {
    char link[64], path[PATH_MAX];
    if (!control || control->left == 0 || !(control->kinds & kind)) return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return 0;
    path[size] = 0;
    return fails(path, kind);
}

static int fails_open(int base, const char *path, int flags) {
    if (!control || control->left == 0) return 0;
    if (fails_at(base, path, OPEN)) return 1;
    int before = errno;
    int is_new = (flags & O_CREAT) && faccessat(base, path, F_OK, 0) != 0;
    errno = before;
    return is_new && fails_at(base, path, CREATE);
}

#define FORWARD(type, name, parameters, given, condition)                                                        \
    type name parameters {                                                                                       \
        static type(*next) parameters;                                                                           \
        if (!next) next = real(#name);                                                                           \
        if (condition) return (type)-1;                                                                          \
        return next given;                                                                                       \
    }

#define OPENS(name)                                                                                              \
    int name(const char *path, int flags, ...) {                                                                 \
        static int (*next)(const char *, int, ...);                                                              \
        if (!next) next = real(#name);                                                                           \
        va_list more;                                                                                            \
        va_start(more, flags);                                                                                   \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0;                              \
        va_end(more);                                                                                            \
        return fails_open(AT_FDCWD, path, flags) ? -1 : next(path, flags, mode);                                 \
    }

#define OPENS_AT(name)                                                                                           \
    int name(int base, const char *path, int flags, ...) {                                                       \
        static int (*next)(int, const char *, int, ...);                                                         \
        if (!next) next = real(#name);                                                                           \
        va_list more;                                                                                            \
        va_start(more, flags);                                                                                   \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0;                              \
        va_end(more);                                                                                            \
        return fails_open(base, path, flags) ? -1 : next(base, path, flags, mode);                               \
    }

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

FORWARD(int, mkdir, (const char *path, mode_t mode), (path, mode), fails(path, CREATE))
FORWARD(int, mkdirat, (int base, const char *path, mode_t mode), (base, path, mode), fails_at(base, path, CREATE))
FORWARD(int, link, (const char *old, const char *path), (old, path), fails(path, CREATE))
FORWARD(int, linkat, (int base, const char *old, int to, const char *path, int flags), (base, old, to, path, flags),
        fails_at(to, path, CREATE))
FORWARD(int, symlink, (const char *old, const char *path), (old, path), fails(path, CREATE))
FORWARD(int, rename, (const char *old, const char *path), (old, path), fails(old, NAME) || fails(path, NAME))
FORWARD(int, renameat, (int base, const char *old, int to, const char *path), (base, old, to, path),
        fails_at(base, old, NAME) || fails_at(to, path, NAME))
FORWARD(int, unlink, (const char *path), (path), fails(path, NAME))
FORWARD(int, unlinkat, (int base, const char *path, int flags), (base, path, flags), fails_at(base, path, NAME))
FORWARD(int, rmdir, (const char *path), (path), fails(path, NAME))
FORWARD(int, chmod, (const char *path, mode_t mode), (path, mode), fails(path, NAME))
FORWARD(int, fchmod, (int file, mode_t mode), (file, mode), fails_in(file, NAME))
FORWARD(int, fchmodat, (int base, const char *path, mode_t mode, int flags), (base, path, mode, flags),
        fails_at(base, path, NAME))

FORWARD(ssize_t, write, (int file, const void *data, size_t size), (file, data, size), fails_in(file, WRITE))
FORWARD(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at),
        fails_in(file, WRITE))
FORWARD(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at),
        fails_in(file, WRITE))
FORWARD(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count),
        fails_in(file, WRITE))
FORWARD(int, ftruncate, (int file, off_t size), (file, size), fails_in(file, WRITE))
FORWARD(int, ftruncate64, (int file, off64_t size), (file, size), fails_in(file, WRITE))
FORWARD(ssize_t, read, (int file, void *data, size_t size), (file, data, size), fails_in(file, READ))
FORWARD(ssize_t, pread, (int file, void *data, size_t size, off_t at), (file, data, size, at),
        fails_in(file, READ))
FORWARD(ssize_t, pread64, (int file, void *data, size_t size, off64_t at), (file, data, size, at),
        fails_in(file, READ))
FORWARD(int, fsync, (int file), (file), fails_in(file, FLUSH))
FORWARD(int, fdatasync, (int file), (file), fails_in(file, FLUSH))

FORWARD(int, stat, (const char *path, struct stat *found), (path, found), fails(path, LOOK))
FORWARD(int, stat64, (const char *path, struct stat64 *found), (path, found), fails(path, LOOK))
FORWARD(int, lstat, (const char *path, struct stat *found), (path, found), fails(path, LOOK))
FORWARD(int, lstat64, (const char *path, struct stat64 *found), (path, found), fails(path, LOOK))
FORWARD(int, fstatat, (int base, const char *path, struct stat *found, int flags), (base, path, found, flags),
        fails_at(base, path, LOOK))
FORWARD(int, fstatat64, (int base, const char *path, struct stat64 *found, int flags), (base, path, found, flags),
        fails_at(base, path, LOOK))
FORWARD(int, access, (const char *path, int mode), (path, mode), fails(path, LOOK))

DIR *opendir(const char *path) {
    static DIR *(*next)(const char *);
    if (!next) next = real("opendir");
    return fails(path, LOOK) ? NULL : next(path);
}
