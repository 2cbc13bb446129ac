/* Memory-streaming BE job: a[i] = b[i] + s * c[i] over arrays far larger than any last-level cache.
 *
 *   stream THREADS [ARRAY_MB] [SECONDS]
 *
 * THREADS workers with arrays of their own, each 3 x ARRAY_MB (default 64); runs until killed, or for SECONDS.
 * Every second one line: seconds since start and MB/s (10^6 bytes) moved, counted as 24 bytes an element. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* One line of its own for each counter: sharing lines would measure the counters. */
struct worker {
    _Alignas(64) atomic_ullong elements;
    double *a, *b, *c;
    size_t n;
    pthread_t thread;
};

/* Elements between two updates of a counter: 1.5 MB of traffic, well below a millisecond. */
#define CHUNK 65536

static void *triad(void *arg) {
    struct worker *w = arg;
    const double s = 3.0;
    for (;;) {
        for (size_t from = 0; from < w->n; from += CHUNK) {
            size_t to = from + CHUNK < w->n ? from + CHUNK : w->n;
            for (size_t i = from; i < to; i++)
                w->a[i] = w->b[i] + s * w->c[i];
            __asm__ volatile("" ::"r"(w->a) : "memory");
            atomic_fetch_add_explicit(&w->elements, to - from, memory_order_relaxed);
        }
    }
    return NULL;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long number(const char *text, const char *name, long lo, long hi) {
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || *end || end == text || v < lo || v > hi) {
        fprintf(stderr, "stream: %s \"%s\" is not a whole number from %ld to %ld\n", name, text, lo, hi);
        exit(2);
    }
    return v;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: stream THREADS [ARRAY_MB] [SECONDS]\n");
        return 2;
    }
    long threads = number(argv[1], "THREADS", 1, 256);
    long array_mb = argc > 2 ? number(argv[2], "ARRAY_MB", 1, 4096) : 64;
    long seconds = argc > 3 ? number(argv[3], "SECONDS", 1, 86400) : 0;
    struct worker *workers = aligned_alloc(64, (size_t)threads * sizeof *workers);
    if (!workers) {
        perror("stream: no memory");
        return 1;
    }
    for (long t = 0; t < threads; t++) {
        struct worker *w = &workers[t];
        w->n = (size_t)array_mb * 1024 * 1024 / sizeof(double);
        w->a = malloc(w->n * sizeof(double));
        w->b = malloc(w->n * sizeof(double));
        w->c = malloc(w->n * sizeof(double));
        if (!w->a || !w->b || !w->c) {
            fprintf(stderr, "stream: no memory for 3 arrays of %ld MB\n", array_mb);
            return 1;
        }
        /* Touched before use, so that page faults are no part of the measurement. */
        for (size_t i = 0; i < w->n; i++)
            w->a[i] = 0.0, w->b[i] = 1.0, w->c[i] = 2.0;
        atomic_init(&w->elements, 0);
        int failed = pthread_create(&w->thread, NULL, triad, w);
        if (failed) {
            fprintf(stderr, "stream: thread %ld: error %d\n", t, failed);
            return 1;
        }
    }
    double start = now_s(), last = start;
    unsigned long long before = 0;
    for (long tick = 1; !seconds || tick <= seconds; tick++) {
        struct timespec one = {1, 0};
        while (nanosleep(&one, &one) && errno == EINTR) {
        }
        unsigned long long sum = 0;
        for (long t = 0; t < threads; t++)
            sum += atomic_load_explicit(&workers[t].elements, memory_order_relaxed);
        double now = now_s();
        printf("%.1f %.0f\n", now - start, (double)(sum - before) * 24.0 / 1e6 / (now - last));
        if (fflush(stdout))
            return 1;
        before = sum;
        last = now;
    }
    return 0;
}
