/* Makes the disk of a process slow: opening a file below SLOW_FOLDER, and writing, flushing and renaming any file, takes
   longer by the milliseconds in the file SLOW_FILE, which may change while the process runs. Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* System calls are made directly: the functions of the C library are those below. */
static void wait_for_disk(void) {
    const char *path = getenv("SLOW_FILE");
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return;
    }
    char text[32] = {0};
    long millis = syscall(SYS_read, file, text, sizeof text - 1) > 0 ? atol(text) : 0;
    syscall(SYS_close, file);
    if (millis > 0) {
        struct timespec time = {millis / 1000, millis % 1000 * 1000000};
        nanosleep(&time, NULL);
    }
}

static void wait_for_file(int file) {
    struct stat status;
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
        wait_for_disk();
    }
}

static int open_file(const char *path, int flags, int mode) {
    const char *folder = getenv("SLOW_FOLDER");
    if (folder && strncmp(path, folder, strlen(folder)) == 0) {
        wait_for_disk();
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return open_file(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return open_file(path, flags, mode);
}

ssize_t write(int file, const void *bytes, size_t count) {
    wait_for_file(file);
    return syscall(SYS_write, file, bytes, count);
}

int fsync(int file) {
    wait_for_disk();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    wait_for_disk();
    return (int)syscall(SYS_fdatasync, file);
}

int rename(const char *from, const char *to) {
    wait_for_disk();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
