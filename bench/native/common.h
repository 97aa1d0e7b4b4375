/* What the load generator and the agent share: time, growing buffers, header fields, and an end with the parent. */

#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LARGEST_MESSAGE ((size_t)64 << 20)

struct buffer {
    char *data;
    size_t length, room;
};

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

/* Room for `more` bytes behind what is there, and a zero byte behind that. */
static inline void reserve(struct buffer *buffer, size_t more) {
    size_t needed = buffer->length + more + 1;
    if (needed <= buffer->room) return;
    if (needed > LARGEST_MESSAGE) fail("a message of more than %zu bytes", LARGEST_MESSAGE);
    buffer->room = needed * 2 < 8192 ? 8192 : needed * 2;
    buffer->data = realloc(buffer->data, buffer->room);
    if (buffer->data == NULL) fail("out of memory");
}

static inline void append(struct buffer *buffer, const char *data, size_t length) {
    reserve(buffer, length);
    memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
}

/* The value of a header field in a head that ends at `end`; NULL if it is not there. */
static inline const char *find_header(const char *head, const char *end, const char *name, size_t *length) {
    size_t width = strlen(name);
    for (const char *line = memchr(head, '\n', (size_t)(end - head)); line != NULL;
         line = memchr(line, '\n', (size_t)(end - line))) {
        line++;
        if ((size_t)(end - line) <= width || line[width] != ':' || strncasecmp(line, name, width) != 0) continue;
        const char *value = line + width + 1;
        while (value < end && *value == ' ') value++;
        const char *stop = value;
        while (stop < end && *stop != '\r' && *stop != '\n') stop++;
        *length = (size_t)(stop - value);
        return value;
    }
    return NULL;
}

static inline int has_token(const char *value, size_t length, const char *token) {
    size_t width = strlen(token);
    for (size_t at = 0; at + width <= length; at++)
        if (strncasecmp(value + at, token, width) == 0) return 1;
    return 0;
}

/* The process must not outlive a run that was killed. */
static inline void end_with_parent(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
}

static inline void pin_to(const char *core) {
    if (*core == 0) return;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(atoi(core), &cores);
    sched_setaffinity(0, sizeof cores, &cores);
}

#endif
