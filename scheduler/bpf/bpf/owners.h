/* What the scheduler and its user (src/owners.rs) share; a test of src/owners.rs holds the user to this file. */
#ifndef SUREFOOT_OWNERS_H
#define SUREFOOT_OWNERS_H

#include "classes.h"

/* Words of 64 CPUs each: as many as a set of CPUs has. */
#define CPU_WORDS 16

/* Of all CPUs. */
struct shared {
	/* The highest class in use. */
	__u64 highest;
	/* A bit for each class whose running threads keep a CPU that is given away, until they leave it. */
	__u64 keepers;
	/* Why the kernel put the scheduler out of charge (enum scx_exit_kind); 0: it is in charge, or was not yet. */
	__u64 ended;
	/* Times that a thread began to run on a CPU of another class, and was sent away. */
	__u64 strays;
	__u64 pad[4];
	struct watched watched[CLASSES];
	/* The order that `move` carries out: these CPUs are given to a class. Its user writes it. */
	__u64 to;
	__u64 cpus[CPU_WORDS];
};

/* Of one CPU, whose line it is. */
struct cpu {
	/* The class that may have it. `move` alone writes it. */
	__u64 owner;
	/* The class of the thread that runs there. */
	__u64 runs;
	/* The class that a thread is being fetched for. A move is over once neither this nor `runs` is of the class that gave. */
	__u64 picks;
	__u64 pad[5];
};

#endif
