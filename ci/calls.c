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

/* One call. ci/bench defines the same structure. Times are in milliseconds. If `extends`, the configuration lacks its end:
 * the answer of the call before it, as the previous result, and a brace. */
struct call {
    const char *path;
    char *const *arguments;
    char *const *env;
    const char *config;
    long size;
    int extends;
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
static int start(struct call *call)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        return errno;
    if (call->size > 1 << 16 && fcntl(in[1], F_SETPIPE_SZ, (int)call->size) < 0)
        return errno;
    if (write(in[1], call->config, (size_t)call->size) != call->size)
        return EMSGSIZE; /* larger than the pipe's buffer */
    if (call->extends) {
        static char answer[1 << 15];
        long size = read(call[-1].answer, answer, sizeof answer - 1);
        if (size < 0)
            return errno;
        answer[size] = '}';
        if (write(in[1], answer, (size_t)size + 1) != size + 1)
            return EMSGSIZE;
    }
    close(in[1]);
    volatile int error = 0; /* shared with the child */
    call->began = now();
    call->process = vfork();
    if (call->process == 0) {
        if (dup2(in[0], 0) == 0 && dup2(out[1], 1) == 1)
            execve(call->path, call->arguments, call->env);
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

/* Makes the calls of `count` lists, `jobs` lists at a time, and of each list one call after the other. `length` is the number
 * of calls in a list; a list ends at a call that fails. Adds the processor time of orphans that exit meanwhile to `orphans`. */
int make_calls(struct call *calls, int count, int length, int jobs, double *orphans)
{
    for (int started = 0, ended = 0; ended < count;) {
        while (started < count && started - ended < jobs) {
            int error = start(&calls[started++ * length]);
            if (error)
                return error;
        }
        int status, process;
        struct rusage usage;
        if ((process = wait4(-1, &status, 0, &usage)) < 0)
            return errno;
        double end = now();
        struct call *call = calls, *last = calls + started * length;
        while (call < last && call->process != process)
            call++;
        if (call == last) {
            *orphans += used(&usage);
            continue;
        }
        call->ended = end;
        call->cpu = used(&usage);
        call->status = status;
        if (status || (call - calls) % length == length - 1) {
            ended++;
            continue;
        }
        int error = start(call + 1);
        if (error)
            return error;
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
