/* Calls plugins and sends packets, and measures their time. ci/bench compiles and loads it: a program that starts fifty
 * processes at once shares the processors with them, and an interpreter would take a tenth of the measured time.
 * posix_spawn would not help: its child queries each of the 64 signals before it executes the plugin.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
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
    if (call->size > 1 << 16 && fcntl(in[1], F_SETPIPE_SZ, (int)call->size) < 0)
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

/* Sends the first packet of `count` UDP flows from `address` to a port of the same address each, and writes the time of each
 * to `took`, in milliseconds. The flows have the source ports from `source` on. */
int send_first_packets(const char *address, const unsigned short *ports, int count, int source, double *took)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
    inet_pton(AF_INET, address, &from.sin_addr);
    to.sin_addr = from.sin_addr;
    for (int i = 0; i < count; i++) {
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        from.sin_port = htons((unsigned short)(source + i));
        to.sin_port = htons(ports[i]);
        if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof from))
            return errno;
        double begin = now();
        if (sendto(fd, "", 1, 0, (struct sockaddr *)&to, sizeof to) != 1)
            return errno;
        took[i] = now() - begin;
        close(fd);
    }
    return 0;
}
