/* A load generator for HTTP/1.1 on loopback that is far cheaper than what it measures.
 *
 * Closed loop: N connections, each sends the next request when the last reply is complete. With --rate it is an open
 * loop: requests are due at random moments (a Poisson process of that rate), whether or not earlier ones have been
 * answered, and a request's latency counts from the moment it was due, so a stalled server cannot hide its stall.
 * Each reply is checked: its status must be 200 or 201, and its body must hold the expected text. Every latency is kept
 * (no histogram with buckets), so the quantiles are exact. One JSON object on stdout has the figures.
 */

#include "common.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define SESSION_MARK "@session@" /* stands for the session id in requests */
#define CALL_TIMEOUT_NS (60 * 1000000000ull)
#define MOST_REQUESTS 4096
#define MOST_OPENINGS 4
#define MOST_PIDS 8
#define MOST_DUE (1u << 20)
#define MOST_BROKEN 10000
#define TENTHS_PER_SECOND 1e7 /* latencies are kept in tenths of a microsecond */

struct connection {
    int fd, is_busy, is_chunked, must_close, status;
    struct buffer in, body;
    size_t position;              /* of the parser in `in` */
    size_t left;                  /* bytes of the body, or of the chunk, that are missing */
    enum { HEAD, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, DONE } state;
    uint64_t sent_at, first_at;
    char session[512];
    char **requests;              /* with this connection's session id */
};

struct samples {
    uint32_t *values;
    size_t count, room;
};

static int port, connections = 1, core = -1;
static double seconds = 1e9, rate;
static uint64_t most_calls = UINT64_MAX;
static char *requests[MOST_REQUESTS], *openings[MOST_OPENINGS], *ending;
static int request_count, opening_count, pid_count;
static int pids[MOST_PIDS];
static const char *expected = "", *marker;

static struct connection *all;
static struct samples latencies, firsts;
static uint64_t calls, started, wrong, broken, reconnects, events;
static int epoll;
static char wrong_reply[300];

static void keep(struct samples *samples, uint64_t ns) {
    if (samples->count == samples->room) {
        samples->room = samples->room ? samples->room * 2 : 1 << 16;
        samples->values = realloc(samples->values, samples->room * sizeof *samples->values);
        if (samples->values == NULL) fail("out of memory");
    }
    uint64_t tenths = ns / 100;
    samples->values[samples->count++] = tenths > UINT32_MAX ? UINT32_MAX : (uint32_t)tenths;
}

/* --- one connection ------------------------------------------------------------------------------------------- */

static int connect_to_server(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("127.0.0.1:%d: %s", port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static int write_all(int fd, const char *data, size_t length) {
    while (length > 0) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
        if (sent > 0) {
            data += sent;
            length -= (size_t)sent;
        } else if (errno == EAGAIN) {
            struct pollfd writable = {.fd = fd, .events = POLLOUT};
            if (poll(&writable, 1, 10000) <= 0) return 0;
        } else if (errno != EINTR)
            return 0;
    }
    return 1;
}

static void expect_reply(struct connection *connection) {
    connection->state = HEAD;
    connection->in.length = connection->position = connection->body.length = 0;
    connection->first_at = 0;
}

static int read_head(struct connection *connection) {
    char *head = connection->in.data + connection->position;
    char *end = memmem(head, connection->in.length - connection->position, "\r\n\r\n", 4);
    if (end == NULL) return 0;
    size_t length;
    const char *value;
    connection->status = end - head > 12 ? atoi(head + 9) : 0;
    if ((value = find_header(head, end, "mcp-session-id", &length)) != NULL && length < sizeof connection->session) {
        memcpy(connection->session, value, length);
        connection->session[length] = 0;
    }
    value = find_header(head, end, "connection", &length);
    connection->must_close = value != NULL && has_token(value, length, "close");
    value = find_header(head, end, "transfer-encoding", &length);
    connection->is_chunked = value != NULL && has_token(value, length, "chunked");
    value = find_header(head, end, "content-length", &length);
    connection->left = value == NULL ? 0 : strtoull(value, NULL, 10);
    connection->position = (size_t)(end + 4 - connection->in.data);
    int is_interim = connection->status >= 100 && connection->status < 200;
    connection->state = is_interim ? HEAD : connection->is_chunked ? CHUNK_SIZE : connection->left ? BODY : DONE;
    return 1;
}

/* The next line of the framing; NULL if it is not complete. */
static char *read_line(struct connection *connection) {
    char *line = connection->in.data + connection->position;
    char *end = memmem(line, connection->in.length - connection->position, "\r\n", 2);
    if (end != NULL) connection->position = (size_t)(end + 2 - connection->in.data);
    return end == NULL ? NULL : line;
}

static int read_body(struct connection *connection) {
    size_t there = connection->in.length - connection->position;
    if (there == 0) return 0;
    if (connection->first_at == 0) connection->first_at = now_ns();
    if (there > connection->left) there = connection->left;
    append(&connection->body, connection->in.data + connection->position, there);
    connection->position += there;
    connection->left -= there;
    if (connection->left == 0) connection->state = connection->is_chunked ? CHUNK_END : DONE;
    return 1;
}

/* Whether the reply is complete. */
static int parse(struct connection *connection) {
    char *line;
    for (;;) switch (connection->state) {
        case HEAD:
            if (!read_head(connection)) return 0;
            break;
        case BODY:
        case CHUNK:
            if (!read_body(connection)) return 0;
            break;
        case CHUNK_SIZE:
            if ((line = read_line(connection)) == NULL) return 0;
            connection->left = strtoull(line, NULL, 16);
            connection->state = connection->left ? CHUNK : TRAILER;
            break;
        case CHUNK_END:
            if (read_line(connection) == NULL) return 0;
            connection->state = CHUNK_SIZE;
            break;
        case TRAILER:
            if ((line = read_line(connection)) == NULL) return 0;
            if (*line == '\r') connection->state = DONE;
            break;
        case DONE:
            return 1;
    }
}

/* 1: the reply is complete, 0: not yet, -1: the connection is closed. */
static int receive(struct connection *connection) {
    reserve(&connection->in, 65536);
    ssize_t length = recv(connection->fd, connection->in.data + connection->in.length, 65536, 0);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (length <= 0) return -1;
    connection->in.length += (size_t)length;
    return parse(connection);
}

static char *with_session(const char *request, const char *session) {
    const char *mark = strstr(request, SESSION_MARK);
    size_t width = strlen(SESSION_MARK);
    char *filled = malloc(strlen(request) + strlen(session) + 1);
    if (filled == NULL) fail("out of memory");
    if (mark == NULL) return strcpy(filled, request);
    memcpy(filled, request, (size_t)(mark - request));
    strcpy(filled + (mark - request), session);
    return strcat(filled, mark + width);
}

/* Sends a request outside of the measurement; the socket still blocks. */
static int exchange(struct connection *connection, const char *request) {
    char *filled = with_session(request, connection->session);
    int result = -1;
    expect_reply(connection);
    if (write_all(connection->fd, filled, strlen(filled))) do {
            errno = 0;
            result = receive(connection);
        } while (result == 0 && errno != EAGAIN);
    free(filled);
    return result == 1;
}

static void watch(struct connection *connection) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(connection - all)};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, connection->fd, &event) != 0) fail("epoll_ctl: %s", strerror(errno));
}

static void open_connection(struct connection *connection) {
    connection->fd = connect_to_server();
    struct timeval limit = {.tv_sec = 60};
    setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (int number = 0; number < opening_count; number++) {
        int is_answered = exchange(connection, openings[number]);
        if (!is_answered || connection->status / 100 != 2)
            fail("the session was refused with HTTP %d: %.*s", connection->status,
                 (int)(connection->body.length < 200 ? connection->body.length : 200), connection->body.data);
    }
    connection->requests = calloc((size_t)request_count, sizeof *connection->requests);
    for (int number = 0; number < request_count; number++)
        connection->requests[number] =
            strstr(requests[number], SESSION_MARK) ? with_session(requests[number], connection->session) : requests[number];
    watch(connection);
}

static void reopen(struct connection *connection) {
    close(connection->fd);
    reconnects++;
    connection->is_busy = 0;
    connection->fd = connect_to_server();
    watch(connection);
}

/* --- the measurement ------------------------------------------------------------------------------------------ */

static void count_broken(struct connection *connection, const char *why) {
    if (broken++ == 0) snprintf(wrong_reply, sizeof wrong_reply, "%s", why);
    if (broken > MOST_BROKEN) fail("more than %d connections broke (%s)", MOST_BROKEN, wrong_reply);
    reopen(connection);
}

static void send_next(struct connection *connection, uint64_t at) {
    char *request = connection->requests[started++ % (uint64_t)request_count];
    expect_reply(connection);
    while (!write_all(connection->fd, request, strlen(request))) count_broken(connection, "the connection was closed");
    connection->sent_at = at;
    connection->is_busy = 1;
}

static void count_reply(struct connection *connection) {
    uint64_t at = now_ns();
    size_t width = strlen(expected);
    struct buffer *body = &connection->body;
    calls++;
    connection->is_busy = 0;
    keep(&latencies, at - connection->sent_at);
    if (marker != NULL) {
        if (connection->first_at) keep(&firsts, connection->first_at - connection->sent_at);
        char *from = body->data, *end = body->data + body->length;
        while (from != NULL && from < end && (from = memmem(from, (size_t)(end - from), marker, strlen(marker))) != NULL) {
            events++;
            from += strlen(marker);
        }
    }
    int is_right = (connection->status == 200 || connection->status == 201) &&
                   (width == 0 || (body->length && memmem(body->data, body->length, expected, width) != NULL));
    if (!is_right && wrong++ == 0)
        snprintf(wrong_reply, sizeof wrong_reply, "HTTP %d: %.*s", connection->status,
                 (int)(body->length < 200 ? body->length : 200), body->length ? body->data : "");
    if (connection->must_close) reopen(connection);
}

/* Gives up calls that were not answered in time. */
static void expire(uint64_t at) {
    for (int number = 0; number < connections; number++)
        if (all[number].is_busy && at > all[number].sent_at + CALL_TIMEOUT_NS) count_broken(&all[number], "no reply in 60 s");
}

static int is_any_busy(void) {
    for (int number = 0; number < connections; number++)
        if (all[number].is_busy) return 1;
    return 0;
}

/* What became readable: a reply, a part of one, or the end of the connection. */
static void handle(struct connection *connection) {
    int result = receive(connection);
    if (result < 0 && connection->is_busy)
        count_broken(connection, "the connection was closed before the reply was complete");
    else if (result < 0)
        reopen(connection);
    else if (result > 0)
        count_reply(connection);
}

static void run_closed_loop(uint64_t began) {
    uint64_t ends_at = began + (uint64_t)(seconds * 1e9), at = began, looked_at = began;
    struct epoll_event ready[256];
    for (int number = 0; number < connections && started < most_calls; number++) send_next(&all[number], now_ns());
    while (is_any_busy()) {
        int count = epoll_wait(epoll, ready, 256, 1000);
        at = now_ns();
        for (int number = 0; number < count; number++) {
            struct connection *connection = &all[ready[number].data.u32];
            handle(connection);
            if (!connection->is_busy && (at = now_ns()) < ends_at && started < most_calls) send_next(connection, at);
        }
        if (at > looked_at + 1000000000ull) {
            expire(looked_at = at);
            for (int number = 0; number < connections; number++)
                if (!all[number].is_busy && at < ends_at && started < most_calls) send_next(&all[number], at);
        }
    }
}

static double random_share(void) {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 1) / 9007199254740993.0;
}

static void run_open_loop(uint64_t began) {
    static uint64_t due[MOST_DUE]; /* requests that no connection is free for, oldest first */
    uint64_t ends_at = began + (uint64_t)(seconds * 1e9), next = began, looked_at = began, head = 0, tail = 0;
    struct epoll_event ready[256], event = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int *idle = calloc((size_t)connections, sizeof *idle), idle_count = 0;
    prctl(PR_SET_TIMERSLACK, 1);
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
    for (int number = connections; number-- > 0;) idle[idle_count++] = number;
    for (;;) {
        uint64_t at = now_ns();
        for (; next <= at && next < ends_at && started + (head - tail) < most_calls;
             next += (uint64_t)(-log(random_share()) / rate * 1e9)) {
            if (head - tail == MOST_DUE) fail("more than %u requests are waiting for a connection", MOST_DUE);
            due[head++ % MOST_DUE] = next;
        }
        while (head > tail && idle_count > 0) send_next(&all[idle[--idle_count]], due[tail++ % MOST_DUE]);
        int is_over = next >= ends_at || started >= most_calls;
        if (is_over && head == tail && !is_any_busy()) break;
        if (!is_over) {
            struct itimerspec when = {.it_value = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        }
        int count = epoll_wait(epoll, ready, 256, 1000);
        for (int number = 0; number < count; number++) {
            uint64_t expirations;
            if (ready[number].data.u32 == UINT32_MAX) {
                if (read(timer, &expirations, sizeof expirations) < 0) continue;
            } else {
                struct connection *connection = &all[ready[number].data.u32];
                int was_busy = connection->is_busy;
                handle(connection);
                if (was_busy && !connection->is_busy) idle[idle_count++] = (int)ready[number].data.u32;
            }
        }
        if (at > looked_at + 1000000000ull) {
            expire(looked_at = at);
            idle_count = 0;
            for (int number = 0; number < connections; number++)
                if (!all[number].is_busy) idle[idle_count++] = number;
        }
    }
    close(timer);
    free(idle);
}

/* --- figures -------------------------------------------------------------------------------------------------- */

static double cpu_of(int pid) {
    struct timespec at;
    clockid_t clock = (clockid_t)((~(unsigned)pid << 3) | 2); /* Linux: the CPU clock of a process */
    if (clock_gettime(pid ? clock : CLOCK_PROCESS_CPUTIME_ID, &at) != 0) return 0;
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* Ticks that a core was busy, and all its ticks. */
static void read_core(double *busy, double *total) {
    char name[16], line[512];
    double tick[8] = {0};
    FILE *file = core < 0 ? NULL : fopen("/proc/stat", "r");
    *busy = *total = 0;
    snprintf(name, sizeof name, "cpu%d ", core);
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0) {
            sscanf(line + strlen(name), "%lf %lf %lf %lf %lf %lf %lf %lf", tick, tick + 1, tick + 2, tick + 3, tick + 4,
                   tick + 5, tick + 6, tick + 7);
            for (int number = 0; number < 8; number++) *total += tick[number];
            *busy = *total - tick[3] - tick[4];
        }
    if (file != NULL) fclose(file);
}

static int compare(const void *one, const void *other) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return a < b ? -1 : a > b;
}

/* 1,001 of the sorted samples (fewer if there are fewer): number n is the smallest that n thousandths do not exceed. */
static void print_quantiles(const char *name, struct samples *samples) {
    size_t parts = samples->count < 1001 ? samples->count : 1001;
    qsort(samples->values, samples->count, sizeof *samples->values, compare);
    printf(",\"%s\":[", name);
    for (size_t number = 0; number < parts; number++) {
        size_t index = parts < 1001 ? number : number == 1000 ? samples->count - 1 : number * samples->count / 1000;
        printf(number ? ",%.7f" : "%.7f", samples->values[index] / TENTHS_PER_SECOND);
    }
    printf("]");
}

static void print_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        unsigned char each = (unsigned char)*text;
        if (each == '"' || each == '\\') printf("\\%c", each);
        else if (each < 32 || each > 126) printf("\\u%04x", each);
        else putchar(each);
    }
    putchar('"');
}

static void measure(void) {
    double cpu[MOST_PIDS], own = cpu_of(0), busy, total, busy_now, total_now;
    for (int number = 0; number < pid_count; number++) cpu[number] = cpu_of(pids[number]);
    read_core(&busy, &total);
    uint64_t began = now_ns();
    if (rate > 0) run_open_loop(began);
    else run_closed_loop(began);
    double took = (double)(now_ns() - began) / 1e9;
    own = cpu_of(0) - own;
    printf("{\"calls\":%llu,\"seconds\":%.6f,\"wrong\":%llu,\"broken\":%llu,\"reconnects\":%llu,\"events\":%llu",
           (unsigned long long)calls, took, (unsigned long long)wrong, (unsigned long long)broken,
           (unsigned long long)reconnects, (unsigned long long)events);
    printf(",\"load_cpu\":%.6f,\"cpu\":[", own);
    for (int number = 0; number < pid_count; number++)
        printf(number ? ",%.6f" : "%.6f", cpu_of(pids[number]) - cpu[number]);
    read_core(&busy_now, &total_now);
    printf("],\"core_busy\":%.3f", total_now > total ? (busy_now - busy) / (total_now - total) : 0);
    printf(",\"wrong_reply\":");
    print_text(wrong_reply);
    print_quantiles("latencies", &latencies);
    print_quantiles("firsts", &firsts);
    printf("}\n");
}

static void read_options(int count, char **words) {
    static const struct option options[] = {
        {"connections", 1, 0, 'n'}, {"seconds", 1, 0, 's'}, {"calls", 1, 0, 'c'},  {"rate", 1, 0, 'r'},
        {"request", 1, 0, 'q'},     {"open", 1, 0, 'o'},    {"end", 1, 0, 'e'},    {"expect", 1, 0, 'x'},
        {"count", 1, 0, 'm'},       {"pid", 1, 0, 'p'},     {"core", 1, 0, 'k'},   {0, 0, 0, 0}};
    static const char usage[] =
        "usage: load PORT --request BYTES [--request BYTES ...] [--open BYTES ...] [--end BYTES] [--connections N]\n"
        "            [--seconds S] [--calls N] [--rate R] [--expect TEXT] [--count TEXT] [--pid PID ...] [--core N]";
    for (int option; (option = getopt_long(count, words, "", options, NULL)) != -1;) {
        switch (option) {
            case 'n': connections = atoi(optarg); break;
            case 's': seconds = atof(optarg); break;
            case 'c': most_calls = strtoull(optarg, NULL, 10); break;
            case 'r': rate = atof(optarg); break;
            case 'q': if (request_count < MOST_REQUESTS) requests[request_count++] = optarg; break;
            case 'o': if (opening_count < MOST_OPENINGS) openings[opening_count++] = optarg; break;
            case 'e': ending = optarg; break;
            case 'x': expected = optarg; break;
            case 'm': marker = optarg; break;
            case 'p': if (pid_count < MOST_PIDS) pids[pid_count++] = atoi(optarg); break;
            case 'k': core = atoi(optarg); break;
            default: fail("%s", usage);
        }
    }
    if (optind + 1 != count || request_count == 0 || connections < 1) fail("%s", usage);
    if (seconds >= 1e9 && most_calls == UINT64_MAX) fail("give --seconds or --calls");
    port = atoi(words[optind]);
}

int main(int count, char **words) {
    end_with_parent();
    read_options(count, words);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    all = calloc((size_t)connections, sizeof *all);
    if (epoll < 0 || all == NULL) fail("cannot begin: %s", strerror(errno));
    for (int number = 0; number < connections; number++) open_connection(&all[number]);
    measure();
    for (int number = 0; ending != NULL && number < connections; number++) exchange(&all[number], ending);
    return 0;
}
