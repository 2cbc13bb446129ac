/* Who runs on each CPU, and how long threads waited for one: a word and a histogram in memory that the reader maps.
 *
 * What holds: nothing allocates, takes a lock or fails; a thread of no watched group costs no write but that of its CPU's own line. */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "feed.h"

/* Of a host whose cpuset controller is of cgroup version 1. */
const volatile bool by_cpuset = 0;

struct shared shared;

/* Entries: one a CPU, set at load time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bank);
} banks SEC(".maps");

/* The group that plans move: of version 1 that of the cpuset hierarchy, which has its own tree. */
static __always_inline struct cgroup *group_of(struct task_struct *p)
{
	struct cgroup_subsys_state *css = 0;
	struct css_set *set = p->cgroups;
	struct cgroup *group = 0;

	if (!by_cpuset)
		return set->dfl_cgrp;
	bpf_probe_read_kernel(&css, sizeof(css), (void *)&set->subsys + bpf_core_enum_value(enum cgroup_subsys_id, cpuset_cgrp_id) * sizeof(css));
	if (css)
		bpf_core_read(&group, sizeof(group), &css->cgroup);
	return group;
}

/* The idle task is of no class. */
static __noinline __u32 class_of(struct task_struct *p)
{
	struct cgroup *group = group_of(p);

	return group && p->pid ? class_in(group, shared.watched, shared.highest) : 0;
}

static __always_inline void begins_to_wait(struct task_struct *p, __u32 class, __u64 now)
{
	__u64 *entry = &shared.waiting[(__u32)p->pid % WAITING];
	__u64 tid = (__u64)(__u32)p->pid;

	/* Woken once more before it ran: it waits since the first time. */
	if (TID_OF(*entry) == tid)
		return;
	*entry = tid << TID_SHIFT | (__u64)class << CLASS_SHIFT | (now & TIME_MASK);
}

static __always_inline void waited(__u64 entry, __u32 cpu, __u64 now)
{
	__u64 ns = (now - entry) & TIME_MASK;
	struct bank *bank = bpf_map_lookup_elem(&banks, &cpu);
	struct waits *of;
	__u64 bound = FIRST_BOUND_NS;
	__u32 i;

	if (!bank)
		return;
	if (ns > TIME_MASK / 2) {
		__sync_fetch_and_add(&shared.backwards, 1);
		return;
	}
	of = &bank->of[CLASS_OF(entry) % CLASSES];
	of->dispatches++;
	of->total_ns += ns;
	for (i = 0; i < WAIT_BOUNDS; i++) {
		if (ns <= bound)
			break;
		of->over[i]++;
		bound *= 2;
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switches, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	__u32 cpu = bpf_get_smp_processor_id(), class = class_of(next);
	struct slot *slot = bpf_map_lookup_elem(&slots, &cpu);
	__u64 entry, *at;

	if (slot)
		slot->runs = ((slot->runs >> CLASS_BITS) + 1) << CLASS_BITS | class;
	/* The idle task is one thread on every CPU, and waits for nothing. */
	at = &shared.waiting[(__u32)next->pid % WAITING];
	entry = *at;
	if (next->pid && TID_OF(entry) == (__u32)next->pid) {
		*at = 0;
		waited(entry, cpu, bpf_ktime_get_ns());
	}
	if (prev->pid && (preempt || !prev_state)) {
		class = class_of(prev);
		if (class)
			begins_to_wait(prev, class, bpf_ktime_get_ns());
	}
	return 0;
}

static __always_inline int wakes(struct task_struct *p)
{
	__u32 class;

	/* Woken before it slept: it goes on without a switch. */
	if (p->on_cpu)
		return 0;
	class = class_of(p);
	if (class)
		begins_to_wait(p, class, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeups, struct task_struct *p)
{
	return wakes(p);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(births, struct task_struct *p)
{
	return wakes(p);
}

/* What runs on this CPU now: until a thread is switched there, its slot is of before a group was watched. Never hooked in, but run on each
 * CPU in turn (BPF_F_TEST_RUN_ON_CPU): it interrupts the thread that runs, and no switch comes in between. */
SEC("raw_tp/sched_switch")
int seed(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct slot *slot = bpf_map_lookup_elem(&slots, &cpu);

	if (slot)
		slot->runs = (slot->runs & ~(__u64)CLASS_MASK) | class_of(bpf_get_current_task_btf());
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
