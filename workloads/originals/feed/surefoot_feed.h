/* Tells Surefoot the response times of a program: C99 or C++11, pthreads, one header, nothing else.
 *
 *   surefoot_feed_offered();                    a request was due
 *   surefoot_feed_answered(response_time_ns);   it was answered, so long after it was due
 *   surefoot_feed_failed();                     it was, with an error; or it never will be
 *
 * From any thread. A thread of its own sends what came together, ten times a second, to the socket that SUREFOOT_FEED names, for the service
 * SUREFOOT_SERVICE (docs/latency-feed.md). Without these two variables every call does nothing. Include it in one file of a program.
 *
 * Histograms are HdrHistogram V2 of three digits, up to an hour. Nothing is lost where the socket takes nothing for a while (the daemon
 * starts anew): the next window has it. */

#ifndef SUREFOOT_FEED_H
#define SUREFOOT_FEED_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
  SUREFOOT_WINDOW_MS = 100,
  /* Windows longer than this are refused: what waited longer is given up. */
  SUREFOOT_LONGEST_MS = 60000,
  /* Three digits: 2048 cells of 1 ns, then 1024 for each power of two. */
  SUREFOOT_HALF = 1024,
  SUREFOOT_CELLS = 33 * SUREFOOT_HALF,
  SUREFOOT_HEADER = 40,
  /* A count has at most nine bytes in LEB128, and there are at most so many different ones in a datagram (256 KiB). */
  SUREFOOT_PAYLOAD = 128 * 1024
};
#define SUREFOOT_HIGHEST_NS 3600000000000ULL

typedef struct {
  pthread_mutex_t lock;
  int fd; /* -1: there is nobody to tell */
  struct sockaddr_un to;
  char service[128];
  uint64_t began_ms;
  /* Of this window. */
  uint64_t count, offered, errors;
  /* Ever. */
  uint64_t waiting;
  uint32_t cells[SUREFOOT_CELLS];
  unsigned char payload[SUREFOOT_HEADER + SUREFOOT_PAYLOAD];
  char text[SUREFOOT_PAYLOAD * 2];
} surefoot_feed_state;

static surefoot_feed_state surefoot_feed = {PTHREAD_MUTEX_INITIALIZER, -1, {0, {0}}, {0}, 0, 0, 0, 0, 0, {0}, {0}, {0}};
static pthread_once_t surefoot_feed_once = PTHREAD_ONCE_INIT;

static uint64_t surefoot_feed_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static size_t surefoot_feed_cell(uint64_t ns) {
  if (ns > SUREFOOT_HIGHEST_NS) ns = SUREFOOT_HIGHEST_NS;
  int shift = 63 - __builtin_clzll(ns | (2 * SUREFOOT_HALF - 1)) - 10;
  return ((size_t)shift * SUREFOOT_HALF) + (size_t)(ns >> shift);
}

static size_t surefoot_feed_leb128(unsigned char *to, int64_t v) {
  uint64_t n = ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
  size_t at = 0;
  for (; n > 0x7f && at < 8; n >>= 7) to[at++] = (unsigned char)(n | 0x80);
  to[at++] = (unsigned char)n;
  return at;
}

static void surefoot_feed_big_endian(unsigned char *to, uint64_t v, int bytes) {
  for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(v >> (8 * (bytes - 1 - i)));
}

/* Length of the histogram in `payload`; 0 where it has no room. */
static size_t surefoot_feed_histogram(surefoot_feed_state *f) {
  unsigned char *const cells = f->payload + SUREFOOT_HEADER;
  size_t length = 0;
  int64_t empty = 0;
  for (size_t i = 0; i < SUREFOOT_CELLS; i++) {
    if (f->cells[i] == 0) {
      empty++;
      continue;
    }
    if (length + 18 > SUREFOOT_PAYLOAD) return 0;
    /* A run of empty cells is one negative number. */
    if (empty == 1) length += surefoot_feed_leb128(cells + length, 0);
    if (empty > 1) length += surefoot_feed_leb128(cells + length, -empty);
    empty = 0;
    length += surefoot_feed_leb128(cells + length, (int64_t)f->cells[i]);
  }
  const double ratio = 1.0;
  uint64_t ratio_bits;
  memcpy(&ratio_bits, &ratio, sizeof ratio_bits);
  surefoot_feed_big_endian(f->payload, 0x1c849313, 4);
  surefoot_feed_big_endian(f->payload + 4, length, 4);
  surefoot_feed_big_endian(f->payload + 8, 0, 4);
  surefoot_feed_big_endian(f->payload + 12, 3, 4);
  surefoot_feed_big_endian(f->payload + 16, 1, 8);
  surefoot_feed_big_endian(f->payload + 24, SUREFOOT_HIGHEST_NS, 8);
  surefoot_feed_big_endian(f->payload + 32, ratio_bits, 8);
  return SUREFOOT_HEADER + length;
}

static size_t surefoot_feed_base64(char *to, const unsigned char *from, size_t n) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t at = 0;
  for (size_t i = 0; i < n; i += 3) {
    uint32_t v = (uint32_t)from[i] << 16;
    if (i + 1 < n) v |= (uint32_t)from[i + 1] << 8;
    if (i + 2 < n) v |= from[i + 2];
    to[at++] = digits[v >> 18];
    to[at++] = digits[(v >> 12) & 63];
    to[at++] = i + 1 < n ? digits[(v >> 6) & 63] : '=';
    to[at++] = i + 2 < n ? digits[v & 63] : '=';
  }
  return at;
}

/* To be called under the lock. */
static void surefoot_feed_send(surefoot_feed_state *f) {
  const uint64_t now_ms = surefoot_feed_now_ms(), window_ms = now_ms > f->began_ms ? now_ms - f->began_ms : 1;
  const size_t length = window_ms > SUREFOOT_LONGEST_MS ? 0 : surefoot_feed_histogram(f);
  if (length > 0) {
    const int head = snprintf(f->text, 512, "{\"service\":\"%s\",\"window_ms\":%llu,\"count\":%llu,\"offered\":%llu,\"errors\":%llu,"
                              "\"outstanding\":%llu,\"unit\":\"ns\",\"histogram\":\"",
                              f->service, (unsigned long long)window_ms, (unsigned long long)f->count, (unsigned long long)f->offered,
                              (unsigned long long)f->errors, (unsigned long long)f->waiting);
    if (head < 0 || head >= 512) return;
    size_t at = (size_t)head + surefoot_feed_base64(f->text + head, f->payload, length);
    f->text[at++] = '"';
    f->text[at++] = '}';
    if (sendto(f->fd, f->text, at, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&f->to, sizeof f->to) < 0) return;
  }
  f->began_ms = now_ms;
  f->count = f->offered = f->errors = 0;
  memset(f->cells, 0, sizeof f->cells);
}

static void *surefoot_feed_run(void *unused) {
  (void)unused;
  for (;;) {
    const struct timespec window = {0, SUREFOOT_WINDOW_MS * 1000000L};
    nanosleep(&window, NULL);
    pthread_mutex_lock(&surefoot_feed.lock);
    surefoot_feed_send(&surefoot_feed);
    pthread_mutex_unlock(&surefoot_feed.lock);
  }
  return NULL;
}

/* The last window, when the program ends in order. */
static void surefoot_feed_end(void) {
  pthread_mutex_lock(&surefoot_feed.lock);
  if (surefoot_feed.fd >= 0) surefoot_feed_send(&surefoot_feed);
  pthread_mutex_unlock(&surefoot_feed.lock);
}

static void surefoot_feed_begin(void) {
  const char *path = getenv("SUREFOOT_FEED"), *service = getenv("SUREFOOT_SERVICE");
  if (path == NULL || *path == 0 || service == NULL || *service == 0) return;
  surefoot_feed_state *const f = &surefoot_feed;
  if (strlen(path) >= sizeof f->to.sun_path || strlen(service) >= sizeof f->service || strpbrk(service, "\"\\") != NULL) {
    fprintf(stderr, "surefoot_feed: SUREFOOT_FEED=%s or SUREFOOT_SERVICE=%s is too long, or no name: nothing is told\n", path, service);
    return;
  }
  f->to.sun_family = AF_UNIX;
  strcpy(f->to.sun_path, path);
  strcpy(f->service, service);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  pthread_t thread;
  f->began_ms = surefoot_feed_now_ms();
  f->fd = fd;
  if (fd < 0 || pthread_create(&thread, NULL, surefoot_feed_run, NULL) != 0) {
    fprintf(stderr, "surefoot_feed: %s: nothing is told\n", strerror(errno));
    f->fd = -1;
    return;
  }
  pthread_detach(thread);
  atexit(surefoot_feed_end);
}

/* False where there is nobody to tell. With true the lock is held. */
static inline int surefoot_feed_open(void) {
  pthread_once(&surefoot_feed_once, surefoot_feed_begin);
  if (surefoot_feed.fd < 0) return 0;
  pthread_mutex_lock(&surefoot_feed.lock);
  return 1;
}

static inline void surefoot_feed_offered(void) {
  if (!surefoot_feed_open()) return;
  surefoot_feed.offered++;
  surefoot_feed.waiting++;
  pthread_mutex_unlock(&surefoot_feed.lock);
}

static inline void surefoot_feed_answered(uint64_t response_time_ns) {
  if (!surefoot_feed_open()) return;
  surefoot_feed.cells[surefoot_feed_cell(response_time_ns)]++;
  surefoot_feed.count++;
  if (surefoot_feed.waiting > 0) surefoot_feed.waiting--;
  pthread_mutex_unlock(&surefoot_feed.lock);
}

static inline void surefoot_feed_failed(void) {
  if (!surefoot_feed_open()) return;
  surefoot_feed.errors++;
  if (surefoot_feed.waiting > 0) surefoot_feed.waiting--;
  pthread_mutex_unlock(&surefoot_feed.lock);
}

#endif
