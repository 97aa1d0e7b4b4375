/* The agent behind everything that is measured, cheap enough not to be the limit: one process, one thread, epoll.
 *
 *   agent PORT [CORE [MS]]
 *                         HTTP: `/` answers with a constant, or with an event every 5 (or MS) milliseconds if the
 *                         caller accepts a stream;
 *                         `/slow` answers 50 ms later; `/mcp` is an MCP server of both eras with the tool `add`;
 *                         `/events` knows the handshake only and answers with a stream of events, as most servers do.
 *   agent stdio [CORE]    the MCP server of the handshake era on stdin and stdout.
 */

#include "common.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define ANSWER "{\"ok\":true,\"result\":{\"answer\":\"forty-two\",\"confidence\":0.9,\"citations\":[]}}"
#define EVENT "data: {\"event\":\"token\",\"data\":{\"text\":\"word \"}}\n\n"
#define FINAL "data: {\"event\":\"final\",\"data\":{\"ok\":true,\"result\":{\"answer\":\"done\"}}}\n\n"
#define EVENTS 200
#define SLOW_NS 50000000ull
#define MOST_TIMED 65536

#define SERVER "{\"name\":\"upstream\",\"version\":\"1\"}"
#define CAPABILITIES "\"capabilities\":{\"tools\":{}}"
#define CACHE "\"resultType\":\"complete\",\"ttlMs\":0,\"cacheScope\":\"private\""
#define NUMBER "{\"type\":\"integer\"}"
#define TOOL                                                                                                     \
    "{\"name\":\"add\",\"description\":\"Add two numbers.\",\"inputSchema\":{\"type\":\"object\",\"properties\":{" \
    "\"a\":" NUMBER ",\"b\":" NUMBER "},\"required\":[\"a\",\"b\"]},\"outputSchema\":{\"type\":\"object\","        \
    "\"properties\":{\"sum\":" NUMBER "},\"required\":[\"sum\"]}}"
#define TOOLS "{\"tools\":[" TOOL "]," CACHE "}"
#define DISCOVERY                                                                                              \
    "{\"supportedVersions\":[\"2026-07-28\",\"2025-11-25\",\"2025-06-18\",\"2025-03-26\",\"2024-11-05\"],"       \
    CAPABILITIES "," CACHE ",\"_meta\":{\"io.modelcontextprotocol/serverInfo\":" SERVER "}}"

struct span {
    const char *at;
    size_t length;
};

struct connection {
    int fd, waits_for_writing, is_timed;
    struct buffer in, out;
    uint64_t due_at;
    int events_left; /* of a stream; 0: a slow answer is due */
};

static struct connection *timed[MOST_TIMED];
static int timed_count, epoll;
static uint64_t pause_ns = 5000000; /* between two events */
static unsigned long sessions;

/* --- JSON: enough to read the fields of an object ------------------------------------------------------------- */

static const char *skip_spaces(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
    return at;
}

static const char *skip_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\') at++;
    return at < end ? at + 1 : end;
}

static const char *skip_value(const char *at, const char *end) {
    int depth = 0;
    for (; at < end; at++) {
        if (*at == '"') at = skip_string(at, end) - 1;
        else if (*at == '{' || *at == '[') depth++;
        else if (depth == 0 && (*at == ',' || *at == '}' || *at == ']')) return at;
        else if (*at == '}' || *at == ']') depth--;
        if (depth == 0 && at < end && (*at == '"' || *at == '}' || *at == ']')) return at + 1;
    }
    return end;
}

/* The value of a field of the object; a length of 0 if it is not there. */
static struct span find_field(struct span object, const char *name) {
    const char *end = object.at + object.length, *at = skip_spaces(object.at, end);
    size_t width = strlen(name);
    if (at < end && *at == '{') at++;
    while ((at = skip_spaces(at, end)) < end && *at == '"') {
        const char *key = at + 1, *key_end = skip_string(at, end) - 1;
        at = skip_spaces(key_end + 1, end);
        if (at < end && *at == ':') at = skip_spaces(at + 1, end);
        const char *value = at;
        at = skip_value(at, end);
        if ((size_t)(key_end - key) == width && memcmp(key, name, width) == 0)
            return (struct span){value, (size_t)(at - value)};
        at = skip_spaces(at, end);
        if (at < end && *at == ',') at++;
    }
    return (struct span){"", 0};
}

static int is_text(struct span value, const char *text) {
    return value.length == strlen(text) + 2 && memcmp(value.at + 1, text, value.length - 2) == 0;
}

/* --- MCP ------------------------------------------------------------------------------------------------------ */

/* Writes the reply to `out`; 0 if the message is a notification, -1 if the method is unknown. */
static int answer_message(struct span message, struct buffer *out, int knows_stateless) {
    struct span id = find_field(message, "id"), method = find_field(message, "method");
    struct span params = find_field(message, "params");
    char result[256];
    const char *text = NULL;
    if (id.length == 0) return 0;
    if (is_text(method, "tools/call")) {
        struct span arguments = find_field(params, "arguments");
        long sum = atol(find_field(arguments, "a").at) + atol(find_field(arguments, "b").at);
        snprintf(result, sizeof result,
                 "{\"content\":[{\"type\":\"text\",\"text\":\"{\\\"sum\\\":%ld}\"}],\"structuredContent\":{\"sum\":%ld},"
                 "\"isError\":false,\"resultType\":\"complete\"}", sum, sum);
        text = result;
    } else if (is_text(method, "tools/list"))
        text = TOOLS;
    else if (is_text(method, "server/discover") && knows_stateless)
        text = DISCOVERY;
    else if (is_text(method, "ping"))
        text = "{}";
    else if (is_text(method, "initialize")) {
        struct span version = find_field(params, "protocolVersion");
        int is_known = version.length == 12 && memcmp(version.at, "\"2026", 5) != 0;
        snprintf(result, sizeof result, "{\"protocolVersion\":%.*s," CAPABILITIES ",\"serverInfo\":" SERVER "}",
                 12, is_known ? version.at : "\"2025-11-25\"");
        text = result;
    }
    append(out, "{\"jsonrpc\":\"2.0\",\"id\":", 22);
    append(out, id.at, id.length);
    if (text == NULL) {
        static const char error[] = ",\"error\":{\"code\":-32601,\"message\":\"Method not found\"}}";
        append(out, error, sizeof error - 1);
        return -1;
    }
    append(out, ",\"result\":", 10);
    append(out, text, strlen(text));
    append(out, "}", 1);
    return 1;
}

static void serve_pipes(void) {
    struct buffer in = {0}, out = {0};
    ssize_t length;
    for (;;) {
        reserve(&in, 65536);
        if ((length = read(0, in.data + in.length, 65536)) <= 0) return;
        in.length += (size_t)length;
        size_t from = 0;
        out.length = 0;
        for (char *end; (end = memchr(in.data + from, '\n', in.length - from)) != NULL;) {
            struct span line = {in.data + from, (size_t)(end - in.data) - from};
            if (answer_message(line, &out, 0) != 0) append(&out, "\n", 1);
            from = (size_t)(end + 1 - in.data);
        }
        memmove(in.data, in.data + from, in.length -= from);
        for (size_t sent = 0; sent < out.length; sent += (size_t)length)
            if ((length = write(1, out.data + sent, out.length - sent)) <= 0) return;
    }
}

/* --- HTTP ----------------------------------------------------------------------------------------------------- */

static void watch(struct connection *connection, int operation) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (connection->waits_for_writing) event.events |= EPOLLOUT;
    epoll_ctl(epoll, operation, connection->fd, &event);
}

static void forget_timer(struct connection *connection) {
    for (int number = 0; connection->is_timed && number < timed_count; number++)
        if (timed[number] == connection) {
            timed[number] = timed[--timed_count];
            connection->is_timed = 0;
        }
}

static void close_connection(struct connection *connection) {
    forget_timer(connection);
    close(connection->fd);
    free(connection->in.data);
    free(connection->out.data);
    free(connection);
}

/* Whether the connection is still there. */
static int flush(struct connection *connection) {
    struct buffer *out = &connection->out;
    while (out->length > 0) {
        ssize_t sent = send(connection->fd, out->data, out->length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent <= 0) {
            close_connection(connection);
            return 0;
        }
        memmove(out->data, out->data + sent, out->length -= (size_t)sent);
    }
    if (connection->waits_for_writing != (out->length > 0)) {
        connection->waits_for_writing = out->length > 0;
        watch(connection, EPOLL_CTL_MOD);
    }
    return 1;
}

static void reply(struct connection *connection, const char *status, const char *more, const char *body, size_t length) {
    char head[256];
    int width = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n",
                         status, more, length);
    append(&connection->out, head, (size_t)width);
    append(&connection->out, body, length);
}

static void write_chunk(struct connection *connection, const char *data, size_t length) {
    char head[32];
    append(&connection->out, head, (size_t)snprintf(head, sizeof head, "%zx\r\n", length));
    append(&connection->out, data, length);
    append(&connection->out, "\r\n", 2);
}

static void begin_stream(struct connection *connection, const char *more) {
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n";
    append(&connection->out, head, sizeof head - 1);
    append(&connection->out, more, strlen(more));
    append(&connection->out, "\r\n", 2);
}

static void answer_mcp(struct connection *connection, struct span body, int is_stateless, int as_events) {
    static struct buffer out;
    char session[64] = "";
    out.length = 0;
    if (as_events) append(&out, "event: message\r\ndata: ", 22);
    int result = answer_message(body, &out, !as_events);
    if (result > 0 && is_text(find_field(body, "method"), "initialize"))
        snprintf(session, sizeof session, "Mcp-Session-Id: %lu\r\n", ++sessions);
    if (result == 0)
        reply(connection, "202 Accepted", "", "", 0);
    else if (as_events) {
        append(&out, "\r\n\r\n", 4);
        begin_stream(connection, session);
        write_chunk(connection, out.data, out.length);
        append(&connection->out, "0\r\n\r\n", 5);
    } else
        reply(connection, result < 0 && is_stateless ? "404 Not Found" : "200 OK", session, out.data, out.length);
}

static void set_timer(struct connection *connection, uint64_t after) {
    if (timed_count == MOST_TIMED) fail("more than %d replies wait for their time", MOST_TIMED);
    connection->due_at = now_ns() + after;
    connection->is_timed = 1;
    timed[timed_count++] = connection;
}

static void answer_request(struct connection *connection, const char *head, const char *end, struct span body) {
    size_t length = 0;
    const char *path = memchr(head, ' ', (size_t)(end - head)), *value;
    int is_post = strncmp(head, "POST ", 5) == 0, is_stateless = 0;
    if (path == NULL) path = " /";
    if ((value = find_header(head, end, "mcp-protocol-version", &length)) != NULL)
        is_stateless = length == 10 && memcmp(value, "2026-07-28", 10) == 0;
    int as_events = strncmp(path, " /events", 8) == 0, is_mcp = as_events || strncmp(path, " /mcp", 5) == 0;
    value = find_header(head, end, "accept", &length);
    int wants_stream = value != NULL && has_token(value, length, "text/event-stream");
    if (!is_post) {
        int is_known = strncmp(head, "DELETE ", 7) == 0 || strncmp(path, " /health", 8) == 0;
        reply(connection, is_known ? "200 OK" : "405 Method Not Allowed", "", "{}", 2);
    } else if (as_events && is_stateless)
        reply(connection, "400 Bad Request", "", "{}", 2);
    else if (is_mcp)
        answer_mcp(connection, body, is_stateless, as_events);
    else if (strncmp(path, " /slow", 6) == 0) {
        connection->events_left = 0;
        set_timer(connection, SLOW_NS);
    } else if (wants_stream) {
        begin_stream(connection, "");
        write_chunk(connection, EVENT, sizeof EVENT - 1);
        connection->events_left = EVENTS;
        set_timer(connection, pause_ns);
    } else
        reply(connection, "200 OK", "", ANSWER, sizeof ANSWER - 1);
}

/* Answers the requests that are complete, one after the other; the next one waits for a timed reply. */
static void handle_requests(struct connection *connection) {
    struct buffer *in = &connection->in;
    size_t from = 0, length;
    while (!connection->is_timed && from < in->length) {
        char *head = in->data + from, *end = memmem(head, in->length - from, "\r\n\r\n", 4);
        if (end == NULL) break;
        const char *value = find_header(head, end, "content-length", &length);
        size_t body = value == NULL ? 0 : strtoull(value, NULL, 10), there = in->length - (size_t)(end + 4 - in->data);
        if (there < body) break;
        answer_request(connection, head, end, (struct span){end + 4, body});
        from = (size_t)(end + 4 - in->data) + body;
    }
    memmove(in->data, in->data + from, in->length -= from);
}

static void receive(struct connection *connection) {
    reserve(&connection->in, 65536);
    ssize_t length = recv(connection->fd, connection->in.data + connection->in.length, 65536, 0);
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0) {
        close_connection(connection);
        return;
    }
    connection->in.length += (size_t)length;
    handle_requests(connection);
    flush(connection);
}

static void advance(struct connection *connection, uint64_t at) {
    if (connection->events_left == 0)
        reply(connection, "200 OK", "", ANSWER, sizeof ANSWER - 1);
    else if (--connection->events_left > 0) {
        write_chunk(connection, EVENT, sizeof EVENT - 1);
        connection->due_at = at + pause_ns;
        flush(connection);
        return;
    } else {
        write_chunk(connection, FINAL, sizeof FINAL - 1);
        append(&connection->out, "0\r\n\r\n", 5);
    }
    forget_timer(connection);
    handle_requests(connection);
    flush(connection);
}

/* Milliseconds until the next timed reply; -1 if there is none. */
static int run_timers(void) {
    uint64_t at = now_ns(), next = UINT64_MAX;
    for (int number = timed_count; number-- > 0;)
        if (number < timed_count && timed[number]->due_at <= at) advance(timed[number], at);
    for (int number = 0; number < timed_count; number++)
        if (timed[number]->due_at < next) next = timed[number]->due_at;
    return next == UINT64_MAX ? -1 : next <= at ? 0 : (int)((next - at) / 1000000) + 1;
}

static void serve_http(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4096) != 0)
        fail("127.0.0.1:%d: %s", port, strerror(errno));
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ready[256], accepting = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &accepting);
    for (;;) {
        int count = epoll_wait(epoll, ready, 256, run_timers());
        for (int number = 0; number < count; number++) {
            struct connection *connection = ready[number].data.ptr;
            if (connection == NULL) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (fd < 0) continue;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                connection = calloc(1, sizeof *connection);
                if (connection == NULL) fail("out of memory");
                connection->fd = fd;
                watch(connection, EPOLL_CTL_ADD);
            } else if (!(ready[number].events & EPOLLOUT) || flush(connection))
                receive(connection);
        }
    }
}

int main(int count, char **words) {
    if (count < 2) fail("usage: agent PORT|stdio [CORE [MS]]");
    pin_to(count > 2 ? words[2] : "");
    if (strcmp(words[1], "stdio") == 0) {
        serve_pipes(); /* until stdin ends */
        return 0;
    }
    end_with_parent();
    if (count > 3) pause_ns = strtoull(words[3], NULL, 10) * 1000000;
    serve_http(atoi(words[1]));
}
