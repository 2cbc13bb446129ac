/* What the programs and the reader (src/feed.rs) share; a test of src/feed.rs holds the reader to this file. */
#ifndef SUREFOOT_FEED_H
#define SUREFOOT_FEED_H

#include "classes.h"

/* Threads that wait at a time; of two with one place the later is counted. */
#define WAITING 4096
#define WAIT_BOUNDS 13
#define FIRST_BOUND_NS 12500

/* An entry of `waiting`: thread, class, time in ns that comes round after 137 s. */
#define TID_SHIFT 42
#define CLASS_SHIFT 37
#define TIME_MASK ((1ULL << CLASS_SHIFT) - 1)
#define TID_OF(entry) ((entry) >> TID_SHIFT)
#define CLASS_OF(entry) ((__u32)((entry) >> CLASS_SHIFT) & (CLASSES - 1))

/* A word of `slots`: how often the CPU was switched, and the class that runs there. */
#define CLASS_BITS 8
#define CLASS_MASK ((1 << CLASS_BITS) - 1)

/* Of all CPUs; the reader writes `watched`. */
struct shared {
	/* The highest index in use. */
	__u64 highest;
	/* Pairs of timestamps that ran backwards. */
	__u64 backwards;
	__u64 pad[6];
	struct watched watched[CLASSES];
	__u64 waiting[WAITING];
};

/* A cache line, which the CPU alone writes. */
struct slot {
	__u64 runs;
	__u64 pad[7];
};

struct waits {
	__u64 dispatches;
	__u64 total_ns;
	__u64 over[WAIT_BOUNDS];
	__u64 pad;
};

/* Of one CPU, which alone writes it. */
struct bank {
	struct waits of[CLASSES];
};

#endif
