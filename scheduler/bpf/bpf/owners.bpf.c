/* A scheduler of services that lend each other CPUs: each CPU has an owner, and runs threads of that service alone.
 *
 * What holds: no thread begins to run on a CPU that its class did not own when it was fetched. A CPU that comes back is left at once.
 * One that is lent stays with a running thread of the lender until that thread leaves it. Threads of no class are left to the kernel's own
 * scheduler, which goes first on every CPU (SCX_OPS_SWITCH_PARTIAL): weights and quotas of other services stay in force. Where this
 * scheduler fails or its loader dies, the kernel's own has all threads again. */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "ext.h"
#include "owners.h"

/* The time that the kernel's own scheduler gives a thread on a host with a few CPUs. */
#define SLICE_NS 3000000ULL
/* A thread that waits longer is a fault: the kernel ends this scheduler. */
#define MOST_WAIT_MS 2000

struct shared shared;

/* Entries: one a CPU, set at load time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

static __always_inline struct cpu *at(__u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline bool keeps(__u64 class)
{
	return shared.keepers >> (class % CLASSES) & 1;
}

static __always_inline __u64 owner_of(__u32 cpu)
{
	struct cpu *c = at(cpu);

	return c ? *(volatile __u64 *)&c->owner : 0;
}

static __noinline __u64 class_of(struct task_struct *p)
{
	return class_in(p->cgroups->dfl_cgrp, shared.watched, shared.highest);
}

/* It cannot leave its CPU now. The kernel counts a program that runs on behalf of the thread itself, too. */
static __always_inline bool bound(struct task_struct *p)
{
	return p->migration_disabled > (bpf_get_current_task_btf() == p);
}

/* A CPU of its class that a thread may use: an idle one, its last if that is one; -1 if the class has none for it. */
static __always_inline __s32 seat(struct task_struct *p, __u64 class, __s32 last, bool *idle)
{
	__s32 any = -1, cpu;

	*idle = 0;
	if (owner_of(last) == class && bpf_cpumask_test_cpu(last, p->cpus_ptr)) {
		*idle = scx_bpf_test_and_clear_cpu_idle(last);
		if (*idle)
			return last;
		any = last;
	}
	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		if (owner_of(cpu) != class || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		*idle = scx_bpf_test_and_clear_cpu_idle(cpu);
		if (*idle)
			return cpu;
		if (any < 0)
			any = cpu;
	}
	return any;
}

SEC("struct_ops/choose")
__s32 BPF_PROG(choose, struct task_struct *p, __s32 last, __u64 flags)
{
	__u64 class = class_of(p);
	__s32 cpu = -1;
	bool idle;

	if (class)
		cpu = seat(p, class, last, &idle);
	return cpu < 0 ? last : cpu;
}

/* Threads wait in a queue of their class; a CPU fetches from that of its owner. None is sent to a CPU: the owner may be another by then. */
SEC("struct_ops/wait_for_cpu")
void BPF_PROG(wait_for_cpu, struct task_struct *p, __u64 flags)
{
	__u64 class = class_of(p);
	__s32 on = scx_bpf_task_cpu(p), cpu;
	bool idle;

	if (!class) {
		insert(p, SCX_DSQ_GLOBAL, SLICE_NS, flags);
		return;
	}
	if (bound(p)) {
		insert(p, SCX_DSQ_LOCAL, SLICE_NS, flags);
		return;
	}
	/* `choose` found this CPU, and woken on it the thread wakes it. */
	if (flags & SCX_ENQ_WAKEUP && owner_of(on) == class) {
		insert(p, class, SLICE_NS, flags);
		return;
	}
	cpu = seat(p, class, on, &idle);
	if (cpu < 0 && keeps(class)) {
		/* Pinned to CPUs that are lent: the lender goes first. A borrower waits until they are lent again. */
		insert(p, SCX_DSQ_LOCAL, SLICE_NS, flags | SCX_ENQ_PREEMPT);
		return;
	}
	/* Others had its CPU for a moment: it does not lose its turn. */
	insert(p, class, SLICE_NS, flags & SCX_ENQ_REENQ ? flags | SCX_ENQ_HEAD : flags);
	if (idle)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

SEC("struct_ops/fetch")
void BPF_PROG(fetch, __s32 cpu, struct task_struct *prev)
{
	struct cpu *c = at(cpu);
	bool goes_on = prev && prev->scx.flags & SCX_TASK_QUEUED;
	__u64 owner, class = goes_on ? class_of(prev) : 0;

	if (!c)
		return;
	/* Written before the owner is read, as a move writes the owner before it reads this: one of the two sees the other. */
	owner = owner_of(cpu);
	__sync_lock_test_and_set(&c->picks, owner);
	if (owner_of(cpu) != owner) {
		/* Its kick is on the way, and comes here once more. */
		owner = 0;
		__sync_lock_test_and_set(&c->picks, 0);
	}
	if (goes_on && class != owner && keeps(class)) {
		prev->scx.slice = SLICE_NS;
	} else if (owner && take_from(owner)) {
		return;
	} else if (goes_on && (class == owner || !class)) {
		prev->scx.slice = SLICE_NS;
	}
	c->picks = 0;
}

SEC("struct_ops/begins")
void BPF_PROG(begins, struct task_struct *p)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu *c = at(cpu);
	__u64 class = class_of(p);

	if (!c)
		return;
	__sync_lock_test_and_set(&c->runs, class);
	c->picks = 0;
	if (class && owner_of(cpu) != class && !keeps(class) && !bound(p)) {
		__sync_fetch_and_add(&shared.strays, 1);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
}

SEC("struct_ops/ends")
void BPF_PROG(ends, struct task_struct *p, bool runnable)
{
	struct cpu *c = at(bpf_get_smp_processor_id());

	if (c)
		c->runs = 0;
}

/* A thread of the kernel's own scheduler takes the CPU: what waited for this CPU alone may go elsewhere. */
SEC("struct_ops/released")
void BPF_PROG(released, __s32 cpu, struct scx_cpu_release_args *args)
{
	scx_bpf_reenqueue_local();
}

SEC("struct_ops.s/begin")
__s32 BPF_PROG(begin)
{
	__s32 class, e;

	/* clang describes a type only where it is looked into. */
	if (!bpf_core_type_exists(struct cpumask))
		return -1;
	bpf_for(class, 1, CLASSES) {
		e = scx_bpf_create_dsq(class, -1);
		if (e)
			return e;
	}
	return 0;
}

SEC("struct_ops/end")
void BPF_PROG(end, struct scx_exit_info *info)
{
	shared.ended = BPF_CORE_READ(info, kind);
}

/* CPUs change their owner. A thread that must leave has been told so when this returns; `picks` and `runs` say when it has. */
SEC("syscall")
int move(void *context)
{
	__u64 owner = shared.to % CLASSES;
	__s32 cpu;

	bpf_for(cpu, 0, scx_bpf_nr_cpu_ids()) {
		struct cpu *c = at(cpu);
		__u32 word = cpu / 64;

		if (!c || word >= CPU_WORDS)
			break;
		if (shared.cpus[word] >> (cpu % 64) & 1) {
			__sync_lock_test_and_set(&c->owner, owner);
			/* One of its own may run there still. */
			if (c->runs == owner)
				continue;
			scx_bpf_kick_cpu(cpu, keeps(owner) ? SCX_KICK_PREEMPT : SCX_KICK_IDLE);
		} else if (c->owner && !c->runs && scx_bpf_dsq_nr_queued(c->owner) > 0) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		}
	}
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops surefoot = {
	.select_cpu = (void *)choose,
	.enqueue = (void *)wait_for_cpu,
	.dispatch = (void *)fetch,
	.running = (void *)begins,
	.stopping = (void *)ends,
	.cpu_release = (void *)released,
	.init = (void *)begin,
	.exit = (void *)end,
	.flags = SCX_OPS_SWITCH_PARTIAL | SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING,
	.timeout_ms = MOST_WAIT_MS,
	.name = "surefoot",
};

char LICENSE[] SEC("license") = "GPL";
