/* Calls plugins and measures their time. ci/bench compiles and loads it: a program that starts fifty processes at once
 * shares the processors with them, and an interpreter would take a tenth of the measured time. posix_spawn would not
 * help: its child queries each of the 64 signals before it executes the plugin.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* One call. ci/bench defines the same structure. Times are in milliseconds. */
struct call {
    char *const *env;
    const char *config;
    long size;
    /* The outcome: */
    double began, ended, cpu;
    int process, answer, status; /* answer: the pipe to read it from */
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static double used(const struct rusage *usage)
{
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1e3
        + (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e3;
}

/* Starts a call as a runtime does: configuration and answer go through pipes. */
static int start(const char *path, struct call *call)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        return errno;
    if (write(in[1], call->config, (size_t)call->size) != call->size)
        return EMSGSIZE; /* larger than the pipe's buffer */
    close(in[1]);
    char *const arguments[] = {(char *)path, 0};
    volatile int error = 0; /* shared with the child */
    call->began = now();
    call->process = vfork();
    if (call->process == 0) {
        if (dup2(in[0], 0) == 0 && dup2(out[1], 1) == 1)
            execve(path, arguments, call->env);
        error = errno;
        _exit(127);
    }
    if (call->process < 0)
        error = errno;
    close(in[0]);
    close(out[1]);
    call->answer = out[0];
    return error;
}

/* Makes `count` calls, `jobs` of them at a time. Adds the processor time of orphans that exit meanwhile to `orphans`. */
int make_calls(const char *path, struct call *calls, int count, int jobs, double *orphans)
{
    for (int started = 0, ended = 0; ended < count;) {
        while (started < count && started - ended < jobs) {
            int error = start(path, &calls[started++]);
            if (error)
                return error;
        }
        int status, process;
        struct rusage usage;
        if ((process = wait4(-1, &status, 0, &usage)) < 0)
            return errno;
        double end = now();
        struct call *call = calls;
        while (call < calls + started && call->process != process)
            call++;
        if (call == calls + started) {
            *orphans += used(&usage);
            continue;
        }
        call->ended = end;
        call->cpu = used(&usage);
        call->status = status;
        ended++;
    }
    return 0;
}
