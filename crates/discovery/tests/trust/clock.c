/* Moves the wall clock of a process by SKEW_SECONDS: loaded with LD_PRELOAD, as libfaketime is. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    const char *skew = getenv("SKEW_SECONDS");
    if (result == 0 && skew && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        time->tv_sec += atol(skew);
    }
    return result;
}
