/* Makes operations on the files of a folder fail for a while, in real processes: loaded before the C library
   (LD_PRELOAD). What fails, and how often, stands in a small file that the test has mapped as well; see __init__.py.

   FAILING_FILES: that file. FAILING_FOLDER: what lies below it may fail, with "/" at its end. */

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

/* As FailingFiles.KINDS, bit by bit. */
enum { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, NAMES = 16, LOOK = 32, TRUNCATE = 64 };

static struct control {
    volatile int32_t error;     /* errno; 0 when nothing fails */
    volatile int32_t permille;  /* how often */
    volatile int32_t kinds;     /* of these */
    int32_t failed;             /* how many have */
} *control;
static char folder[PATH_MAX];
static size_t folder_length;
static unsigned chance;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAILING_FILES"), *below = getenv("FAILING_FOLDER");
    if (!file || !below || strlen(below) >= sizeof folder) return;
    strcpy(folder, below);
    folder_length = strlen(folder);
    chance = (unsigned)getpid();
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int descriptor = real_open(file, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return;
    void *at = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (at != MAP_FAILED) control = at;
}

static int drawn(int kind) {
    return control && control->error && (control->kinds & kind) && (int)(rand_r(&chance) % 1000) < control->permille;
}

static int failed(const char *path) {
    if (strncmp(path, folder, folder_length)) return 0;
    __sync_fetch_and_add(&control->failed, 1);
    errno = control->error;
    return errno != 0;
}

static ssize_t path_of(int descriptor, char full[PATH_MAX]) {
    char link[64];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, full, PATH_MAX - 1);
    errno = before;
    if (length >= 0) full[length] = 0;
    return length;
}

static int fails(int kind, int descriptor) {
    char full[PATH_MAX];
    return drawn(kind) && path_of(descriptor, full) >= 0 && failed(full);
}

static int fails_at(int kind, int parent, const char *path) {
    char full[PATH_MAX];
    if (!path || !path[0] || !drawn(kind)) return 0;
    if (path[0] == '/') return failed(path);
    ssize_t length = -1;
    if (parent != AT_FDCWD) length = path_of(parent, full);
    else if (getcwd(full, sizeof full)) length = (ssize_t)strlen(full);
    if (length < 0) return 0;
    snprintf(full + length, sizeof full - (size_t)length, "/%s", path);
    return failed(full);
}

/* A full disk, or one that may not be written, opens files to be read. */
static int may_fail(int flags) {
    int only_changes = control && (control->error == EROFS || control->error == ENOSPC || control->error == EDQUOT);
    return !only_changes || (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);
}

/* NAME(PARAMETERS), as the C library has it, unless CONDITION: then FAILURE. */
#define PASS(type, name, parameters, arguments, condition, failure)                      \
    type name parameters {                                                              \
        static type(*real) parameters;                                                  \
        if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name);                  \
        return (condition) ? (failure) : real arguments;                                \
    }
#define OPENS(name, parameters, parent, arguments)                                       \
    int name parameters {                                                               \
        static int(*real) parameters;                                                   \
        mode_t mode = 0;                                                                \
        if (flags & (O_CREAT | O_TMPFILE)) {                                            \
            va_list more;                                                               \
            va_start(more, flags);                                                      \
            mode = va_arg(more, mode_t);                                                \
            va_end(more);                                                               \
        }                                                                               \
        if (!real) real = (int(*) parameters)dlsym(RTLD_NEXT, #name);                   \
        return may_fail(flags) && fails_at(OPEN, parent, path) ? -1 : real arguments;   \
    }

OPENS(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPENS(openat, (int parent, const char *path, int flags, ...), parent, (parent, path, flags, mode))
OPENS(openat64, (int parent, const char *path, int flags, ...), parent, (parent, path, flags, mode))
PASS(FILE *, fopen, (const char *path, const char *mode), (path, mode),
     may_fail(mode[0] == 'r' ? O_RDONLY : O_WRONLY) && fails_at(OPEN, AT_FDCWD, path), NULL)
PASS(FILE *, fopen64, (const char *path, const char *mode), (path, mode),
     may_fail(mode[0] == 'r' ? O_RDONLY : O_WRONLY) && fails_at(OPEN, AT_FDCWD, path), NULL)
PASS(DIR *, opendir, (const char *path), (path), may_fail(O_RDONLY) && fails_at(OPEN, AT_FDCWD, path), NULL)

PASS(ssize_t, read, (int file, void *to, size_t size), (file, to, size), fails(READ, file), -1)
PASS(ssize_t, pread, (int file, void *to, size_t size, off_t at), (file, to, size, at), fails(READ, file), -1)
PASS(ssize_t, pread64, (int file, void *to, size_t size, off64_t at), (file, to, size, at), fails(READ, file), -1)
PASS(ssize_t, write, (int file, const void *from, size_t size), (file, from, size), fails(WRITE, file), -1)
PASS(ssize_t, pwrite, (int file, const void *from, size_t size, off_t at), (file, from, size, at), fails(WRITE, file),
     -1)
PASS(ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t at), (file, from, size, at),
     fails(WRITE, file), -1)
PASS(ssize_t, writev, (int file, const struct iovec *from, int count), (file, from, count), fails(WRITE, file), -1)
PASS(int, fsync, (int file), (file), fails(SYNC, file), -1)
PASS(int, fdatasync, (int file), (file), fails(SYNC, file), -1)
PASS(int, ftruncate, (int file, off_t size), (file, size), fails(TRUNCATE, file), -1)
PASS(int, ftruncate64, (int file, off64_t size), (file, size), fails(TRUNCATE, file), -1)
PASS(int, posix_fallocate, (int file, off_t at, off_t size), (file, at, size), fails(TRUNCATE, file), errno)
PASS(int, posix_fallocate64, (int file, off64_t at, off64_t size), (file, at, size), fails(TRUNCATE, file), errno)

PASS(int, rename, (const char *from, const char *to), (from, to), fails_at(NAMES, AT_FDCWD, to), -1)
PASS(int, renameat, (int from_parent, const char *from, int parent, const char *to), (from_parent, from, parent, to),
     fails_at(NAMES, parent, to), -1)
PASS(int, link, (const char *from, const char *to), (from, to), fails_at(NAMES, AT_FDCWD, to), -1)
PASS(int, unlink, (const char *path), (path), fails_at(NAMES, AT_FDCWD, path), -1)
PASS(int, unlinkat, (int parent, const char *path, int flags), (parent, path, flags), fails_at(NAMES, parent, path), -1)
PASS(int, rmdir, (const char *path), (path), fails_at(NAMES, AT_FDCWD, path), -1)
PASS(int, mkdir, (const char *path, mode_t mode), (path, mode), fails_at(NAMES, AT_FDCWD, path), -1)
PASS(int, mkdirat, (int parent, const char *path, mode_t mode), (parent, path, mode), fails_at(NAMES, parent, path), -1)
PASS(int, utimensat, (int parent, const char *path, const struct timespec times[2], int flags),
     (parent, path, times, flags), fails_at(NAMES, parent, path), -1)

PASS(int, stat, (const char *path, struct stat *about), (path, about), fails_at(LOOK, AT_FDCWD, path), -1)
PASS(int, stat64, (const char *path, struct stat64 *about), (path, about), fails_at(LOOK, AT_FDCWD, path), -1)
PASS(int, lstat, (const char *path, struct stat *about), (path, about), fails_at(LOOK, AT_FDCWD, path), -1)
PASS(int, lstat64, (const char *path, struct stat64 *about), (path, about), fails_at(LOOK, AT_FDCWD, path), -1)
PASS(int, fstatat, (int parent, const char *path, struct stat *about, int flags), (parent, path, about, flags),
     fails_at(LOOK, parent, path), -1)
PASS(int, fstatat64, (int parent, const char *path, struct stat64 *about, int flags), (parent, path, about, flags),
     fails_at(LOOK, parent, path), -1)
PASS(int, access, (const char *path, int mode), (path, mode), fails_at(LOOK, AT_FDCWD, path), -1)
