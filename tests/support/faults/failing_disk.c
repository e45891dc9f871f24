/* A disk that fails, and that is recorded: preloaded into a program (LD_PRELOAD), or used by what is forked from it.

   The control block is in the file that FAILING_DISK names. Another process changes it while the program runs: calls
   of `kinds`, on paths that begin with `prefix`, fail while `left` is not 0. If `root` is not empty, each call that
   changes or flushes what is below it is appended to the file FAILING_DISK.calls, once it has returned. */

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

static struct control {
    int64_t left;   /* calls that are still to fail; negative: all */
    int64_t failed; /* calls that failed */
    int64_t turns;  /* orders the beginnings and ends of recorded calls */
    uint32_t error; /* errno */
    uint32_t kinds; /* of calls */
    uint32_t share; /* of these calls that fail, of 1000 */
    uint32_t unused;
    char last[512]; /* path of the last one that failed */
    char prefix[512], root[512];
} *control;

struct record {
    int64_t began, ended, inode, at;
    uint32_t kind, path, target, data; /* the character that stands for a call; sizes of what follows */
};

static int calls = -1;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }
#define NEXT(type, name, ...)                                                                                        \
    static type (*next)(__VA_ARGS__);                                                                                \
    if (!next) next = real(#name)

/* From now on calls fail, and are recorded, as this file says. */
void failing_disk(const char *file) {
    char beside[PATH_MAX];
    int (*next)(const char *, int, ...) = real("open");
    int descriptor = file ? next(file, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *page = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (page == MAP_FAILED) return;
    control = page;
    snprintf(beside, sizeof beside, "%s.calls", file);
    if (*control->root) calls = next(beside, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
}

__attribute__((constructor)) static void begin(void) { failing_disk(getenv("FAILING_DISK")); }

/* Return the absolute path of what is under a path, or of an open file if there is no path; NULL if it has none. */
static const char *whole(int base, const char *path, char *into) {
    char link[64];
    int before = errno;
    if (path && (path[0] == '/' || base == AT_FDCWD)) return path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", base);
    ssize_t size = readlink(link, into, PATH_MAX - 1);
    errno = before;
    if (size < 0) return NULL;
    into[size] = 0;
    if (path) snprintf(into + size, PATH_MAX, "/%s", path);
    return into;
}

static int fails(int base, const char *path, uint32_t kind) {
    static __thread uint32_t random;
    char buffer[2 * PATH_MAX];
    if (!control || control->left == 0 || !(control->kinds & kind)) return 0;
    const char *place = whole(base, path, buffer);
    if (!place || strncmp(place, control->prefix, strlen(control->prefix))) return 0;
    if (!random) random = (uint32_t)getpid() * 2654435761u + (uint32_t)(uintptr_t)&random + 1;
    random = random * 1664525u + 1013904223u;
    if ((random >> 8) % 1000 >= control->share) return 0;
    if (control->left > 0 && __sync_fetch_and_sub(&control->left, 1) <= 0) {
        control->left = 0;
        return 0;
    }
    snprintf(control->last, sizeof control->last, "%s", place);
    __sync_fetch_and_add(&control->failed, 1);
    errno = (int)control->error;
    return 1;
}

static int64_t turn(void) { return calls < 0 ? 0 : __sync_add_and_fetch(&control->turns, 1); }

/* Record a call that has returned; `path` and `target` are absolute, and may be NULL. */
static void record(char kind, int64_t began, int file, const char *path, const char *target, int64_t at,
                   const void *data, ssize_t size) {
    char buffer[2 * PATH_MAX];
    struct stat status = {0};
    if (calls < 0 || size < 0) return;
    int before = errno;
    const char *place = path ? path : whole(file, NULL, buffer);
    size_t length = strlen(control->root);
    if (kind != 't' && (!place || strncmp(place, control->root, length) || (place[length] && place[length] != '/')))
        goto done;
    if (file >= 0 ? fstat(file, &status) : kind == 'd' && stat(place, &status)) goto done;
    struct record head = {began, turn(), (int64_t)status.st_ino, at, (uint32_t)kind, (uint32_t)strlen(place ? place : ""),
                          (uint32_t)strlen(target ? target : ""), (uint32_t)size};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)place, head.path}, {(void *)target, head.target}, {(void *)data, head.data}};
    NEXT(ssize_t, writev, int, const struct iovec *, int);
    if (next(calls, parts, 4) < 0) abort();
done:
    errno = before;
}

static int fails_open(int base, const char *path, int flags) {
    if (!control || control->left == 0) return 0;
    if (fails(base, path, OPEN)) return 1;
    int before = errno;
    int is_new = (flags & O_CREAT) && faccessat(base, path, F_OK, 0) != 0;
    errno = before;
    return is_new && fails(base, path, CREATE);
}

static int opened(int file, int64_t began, int base, const char *path, int flags) {
    char buffer[2 * PATH_MAX];
    if (file >= 0 && (flags & (O_CREAT | O_TRUNC)))
        record('o', began, file, whole(base, path, buffer), NULL, (flags & O_TRUNC) != 0, NULL, 0);
    return file;
}

static ssize_t wrote(ssize_t size, int64_t began, int file, const void *data, int64_t at) {
    if (calls >= 0 && size >= 0 && file == 2) record('t', began, -1, NULL, NULL, 0, data, size);
    else if (calls >= 0 && size >= 0)
        record('w', began, file, NULL, NULL, at < 0 ? lseek(file, 0, SEEK_CUR) - size : at, data, size);
    return size;
}

static int named(int result, char kind, int64_t began, int base, const char *path, int to, const char *target) {
    char buffers[2][2 * PATH_MAX];
    if (calls >= 0 && result >= 0)
        record(kind, began, -1, whole(base, path, buffers[0]), target ? whole(to, target, buffers[1]) : NULL, 0, NULL, 0);
    return result;
}

static int filed(int result, char kind, int64_t began, int file, int64_t at) {
    if (calls >= 0 && result >= 0) record(kind, began, file, NULL, NULL, at, NULL, 0);
    return result;
}

#define HERE AT_FDCWD
#define MODE(flags)                                                                                                  \
    va_list more;                                                                                                    \
    va_start(more, flags);                                                                                           \
    mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0;                                      \
    va_end(more)
#define OPENS(name)                                                                                                  \
    int name(const char *path, int flags, ...) {                                                                     \
        NEXT(int, name, const char *, int, ...);                                                                     \
        MODE(flags);                                                                                                 \
        int64_t began = turn();                                                                                      \
        return fails_open(HERE, path, flags) ? -1 : opened(next(path, flags, mode), began, HERE, path, flags);       \
    }
#define OPENS_AT(name)                                                                                               \
    int name(int base, const char *path, int flags, ...) {                                                           \
        NEXT(int, name, int, const char *, int, ...);                                                                \
        MODE(flags);                                                                                                 \
        int64_t began = turn();                                                                                      \
        return fails_open(base, path, flags) ? -1 : opened(next(base, path, flags, mode), began, base, path, flags); \
    }
#define FORWARD(type, name, parameters, given, condition, result)                                                    \
    type name parameters {                                                                                           \
        static type(*next) parameters;                                                                               \
        if (!next) next = real(#name);                                                                               \
        int64_t began = turn();                                                                                      \
        (void)began;                                                                                                 \
        return condition ? (type)-1 : result;                                                                        \
    }
#define PATHS(name, kind, letter)                                                                                    \
    FORWARD(int, name, (const char *path), (path), fails(HERE, path, kind),                                          \
            named(next(path), letter, began, HERE, path, 0, NULL))
#define WRITES(name, parameters, given, data, at)                                                                    \
    FORWARD(ssize_t, name, parameters, given, fails(file, NULL, WRITE), wrote(next given, began, file, data, at))
#define READS(name, parameters, given) FORWARD(ssize_t, name, parameters, given, fails(file, NULL, READ), next given)
#define FILES(name, parameters, given, kind, letter, at)                                                             \
    FORWARD(int, name, parameters, given, fails(file, NULL, kind), filed(next given, letter, began, file, at))
#define LOOKS(name, parameters, given, base)                                                                         \
    FORWARD(int, name, parameters, given, fails(base, path, LOOK), next given)

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

FORWARD(int, mkdir, (const char *path, mode_t mode), (path, mode), fails(HERE, path, CREATE),
        named(next(path, mode), 'd', began, HERE, path, 0, NULL))
FORWARD(int, mkdirat, (int base, const char *path, mode_t mode), (base, path, mode), fails(base, path, CREATE),
        named(next(base, path, mode), 'd', began, base, path, 0, NULL))
FORWARD(int, link, (const char *old, const char *path), (old, path), fails(HERE, path, CREATE),
        named(next(old, path), 'l', began, HERE, old, HERE, path))
FORWARD(int, linkat, (int base, const char *old, int to, const char *path, int flags), (base, old, to, path, flags),
        fails(to, path, CREATE), named(next(base, old, to, path, flags), 'l', began, base, old, to, path))
FORWARD(int, symlink, (const char *old, const char *path), (old, path), fails(HERE, path, CREATE),
        named(next(old, path), 's', began, HERE, path, 0, NULL))
FORWARD(int, rename, (const char *old, const char *path), (old, path),
        (fails(HERE, old, NAME) || fails(HERE, path, NAME)), named(next(old, path), 'r', began, HERE, old, HERE, path))
FORWARD(int, renameat, (int base, const char *old, int to, const char *path), (base, old, to, path),
        (fails(base, old, NAME) || fails(to, path, NAME)), named(next(base, old, to, path), 'r', began, base, old, to, path))
PATHS(unlink, NAME, 'u')
PATHS(rmdir, NAME, 'u')
FORWARD(int, unlinkat, (int base, const char *path, int flags), (base, path, flags), fails(base, path, NAME),
        named(next(base, path, flags), 'u', began, base, path, 0, NULL))
FORWARD(int, chmod, (const char *path, mode_t mode), (path, mode), fails(HERE, path, NAME), next(path, mode))
FORWARD(int, fchmod, (int file, mode_t mode), (file, mode), fails(file, NULL, NAME), next(file, mode))
FORWARD(int, fchmodat, (int base, const char *path, mode_t mode, int flags), (base, path, mode, flags),
        fails(base, path, NAME), next(base, path, mode, flags))

WRITES(write, (int file, const void *data, size_t size), (file, data, size), data, -1)
WRITES(pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at), data, at)
WRITES(pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at), data, at)
FORWARD(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count),
        fails(file, NULL, WRITE), next(file, parts, count))
FILES(ftruncate, (int file, off_t size), (file, size), WRITE, 'z', size)
FILES(ftruncate64, (int file, off64_t size), (file, size), WRITE, 'z', size)
FILES(fsync, (int file), (file), FLUSH, 'f', 0)
FILES(fdatasync, (int file), (file), FLUSH, 'f', 0)
READS(read, (int file, void *data, size_t size), (file, data, size))
READS(pread, (int file, void *data, size_t size, off_t at), (file, data, size, at))
READS(pread64, (int file, void *data, size_t size, off64_t at), (file, data, size, at))
LOOKS(stat, (const char *path, struct stat *into), (path, into), HERE)
LOOKS(stat64, (const char *path, struct stat64 *into), (path, into), HERE)
LOOKS(lstat, (const char *path, struct stat *into), (path, into), HERE)
LOOKS(lstat64, (const char *path, struct stat64 *into), (path, into), HERE)
LOOKS(fstatat, (int base, const char *path, struct stat *into, int flags), (base, path, into, flags), base)
LOOKS(fstatat64, (int base, const char *path, struct stat64 *into, int flags), (base, path, into, flags), base)
LOOKS(access, (const char *path, int mode), (path, mode), HERE)

DIR *opendir(const char *path) {
    NEXT(DIR *, opendir, const char *);
    return fails(HERE, path, LOOK) ? NULL : next(path);
}
