/* Which watched group a thread belongs to: the one that it is in, or below of which. Its index is the thread's class; 0 stands for every other. */
#ifndef SUREFOOT_CLASSES_H
#define SUREFOOT_CLASSES_H

/* Groups at a time, and one. */
#define CLASSES 32

struct watched {
	/* Of the folder of the cgroup; 0: not in use. */
	__u64 id;
	/* Folders between it and the root of its hierarchy, itself included. */
	__u64 level;
};

/* `highest` is the highest index in use. */
static __always_inline __u32 class_in(struct cgroup *group, struct watched *watched, __u64 highest)
{
	struct cgroup *above = 0;
	int own = -1, level = -1;
	__u64 id = 0;
	__u32 i;

	bpf_core_read(&own, sizeof(own), &group->level);
	for (i = 1; i < CLASSES; i++) {
		struct watched *w = &watched[i];
		int at = w->level;

		if (i > highest)
			break;
		if (!w->id || at < 0 || at > own)
			continue;
		/* Services are siblings as a rule: one look serves them all. */
		if (at != level) {
			level = at;
			id = 0;
			above = 0;
			bpf_probe_read_kernel(&above, sizeof(above), (void *)&group->ancestors + (__u64)at * sizeof(above));
			if (above)
				id = BPF_CORE_READ(above, kn, id);
		}
		if (id == w->id)
			return i;
	}
	return 0;
}

#endif
