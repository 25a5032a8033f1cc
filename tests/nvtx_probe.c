/* An NVTX v3 injection library for the tests: writes down every domain range of the program it is loaded into.
 *
 *   gcc -shared -fPIC -O1 -o libprobe.so nvtx_probe.c
 *   NVTX_INJECTION64_PATH=./libprobe.so NVTX_PROBE_LOG=log.tsv python3 program.py
 *
 * With NVTX_PROBE_LOG=none it does nothing at all: what is left is the cost of being called.
 *
 * One line an event, appended in one write(), tab separated, "-" for none:
 *   EVENT  t_ns (CLOCK_MONOTONIC)  pid  tid  domain  name  category  payload
 * EVENT: ready, push, pop, category. A category is written as the number it has in its domain; the line "category"
 * says which name it stands for. A pop carries no name: the reader keeps the stack (tests/nvtx_log.py).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* nvtxEventAttributes_t of NVTX 3, field by field. */
struct attributes {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type; /* 1 u64, 2 i64, 3 f64, 4 u32, 5 i32, 6 f32 */
    int32_t reserved;
    union {
        uint64_t u64;
        int64_t i64;
        double f64;
        uint32_t u32;
        int32_t i32;
        float f32;
    } payload;
    int32_t message_type; /* 1 char *, 3 a registered string */
    const void *message;
};

/* NVTX_ETID_CALLBACKS hands out tables of places; what stands in a place is called instead of doing nothing. */
struct callbacks {
    size_t size;
    int (*table)(uint32_t module, void ****places, unsigned *count);
};

enum { MODULE_CORE2 = 5 };
enum { AT_PUSH = 4, AT_POP = 5, AT_CATEGORY = 8, AT_STRING = 10, AT_DOMAIN = 12, PLACES_NEEDED = 13 };

static int log_fd = STDERR_FILENO;
static __thread int depth; /* over all domains: what push and pop are to return */

/* Handles point to their own text, so nothing needs looking up; they live as long as the process. */
static const char *text_of(const void *handle) { return handle ? handle : "-"; }

static void *keep(const char *text) { return strdup(text ? text : "-"); }

static void note(const char *event, const void *domain, const char *name, uint32_t category, const char *payload)
{
    struct timespec now;
    char line[768];
    int length;

    if (log_fd < 0) {
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    length = snprintf(line, sizeof line, "%s\t%" PRId64 "\t%ld\t%ld\t%s\t%.400s\t%u\t%s\n", event,
                      (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, (long)getpid(), (long)syscall(SYS_gettid),
                      text_of(domain), name, category, payload);
    if (length >= (int)sizeof line) {
        length = sizeof line;
        line[length - 1] = '\n';
    }
    if (write(log_fd, line, length) != length) {
        return; /* a full disk is not the program's business */
    }
}

static const char *message_of(const struct attributes *a)
{
    return (a->message_type == 1 || a->message_type == 3) ? text_of(a->message) : "-";
}

static void payload_of(const struct attributes *a, char *out, size_t size)
{
    switch (a->payload_type) {
    case 1: snprintf(out, size, "%" PRIu64, a->payload.u64); break;
    case 2: snprintf(out, size, "%" PRId64, a->payload.i64); break;
    case 3: snprintf(out, size, "%.17g", a->payload.f64); break;
    case 4: snprintf(out, size, "%" PRIu32, a->payload.u32); break;
    case 5: snprintf(out, size, "%" PRId32, a->payload.i32); break;
    case 6: snprintf(out, size, "%.9g", (double)a->payload.f32); break;
    default: snprintf(out, size, "-");
    }
}

static int on_push(const void *domain, const struct attributes *a)
{
    char payload[64];

    if (log_fd < 0) {
        return depth++;
    }
    payload_of(a, payload, sizeof payload);
    note("push", domain, message_of(a), a->category, payload);
    return depth++;
}

static int on_pop(const void *domain)
{
    note("pop", domain, "-", 0, "-");
    return depth > 0 ? --depth : -1;
}

static void on_category(const void *domain, uint32_t id, const char *name) { note("category", domain, name, id, "-"); }

static void *on_string(const void *domain, const char *text)
{
    (void)domain;
    return keep(text);
}

static void *on_domain(const char *name) { return keep(name); }

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t))
{
    const struct callbacks *callbacks = export_table(1);
    const char *path = getenv("NVTX_PROBE_LOG");
    void ***places;
    unsigned count;

    if (!callbacks || !callbacks->table(MODULE_CORE2, &places, &count) || count < PLACES_NEEDED) {
        return 0;
    }
    if (path && strcmp(path, "none") == 0) {
        log_fd = -1;
    } else if (path && log_fd == STDERR_FILENO) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (fd >= 0) {
            log_fd = fd;
        }
    }
    *places[AT_PUSH] = (void *)on_push;
    *places[AT_POP] = (void *)on_pop;
    *places[AT_CATEGORY] = (void *)on_category;
    *places[AT_STRING] = (void *)on_string;
    *places[AT_DOMAIN] = (void *)on_domain;
    note("ready", NULL, "-", 0, "-");
    return 1;
}
