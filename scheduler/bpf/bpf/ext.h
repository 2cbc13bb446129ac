/* The part of sched_ext that owners.bpf.c uses: types, constants and functions of the kernel, from 6.12 on. */
#ifndef SUREFOOT_EXT_H
#define SUREFOOT_EXT_H

/* Constants are the kernel's; none has changed since 6.12. */
#define SCX_DSQ_GLOBAL (1ULL << 63 | 1)
#define SCX_DSQ_LOCAL (1ULL << 63 | 2)
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_ENQ_HEAD (1ULL << 4)
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_ENQ_REENQ (1ULL << 40)
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_TASK_QUEUED 1U
#define SCX_OPS_ENQ_LAST (1ULL << 1)
#define SCX_OPS_ENQ_EXITING (1ULL << 2)
#define SCX_OPS_SWITCH_PARTIAL (1ULL << 3)

/* The kernel refuses a type that is only named. */
struct cpumask {
	unsigned long bits[1];
};
/* The counter of bpf_for. */
struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));

enum scx_exit_kind {
	SCX_EXIT_NONE = 0,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct scx_exit_info {
	enum scx_exit_kind kind;
};

#pragma clang attribute pop

struct scx_cpu_release_args;

/* Members are found by name. */
struct sched_ext_ops {
	__s32 (*select_cpu)(struct task_struct *p, __s32 prev_cpu, __u64 wake_flags);
	void (*enqueue)(struct task_struct *p, __u64 enq_flags);
	void (*dispatch)(__s32 cpu, struct task_struct *prev);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*cpu_release)(__s32 cpu, struct scx_cpu_release_args *args);
	__s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	__u64 flags;
	__u32 timeout_ms;
	char name[128];
};

extern bool bpf_cpumask_test_cpu(__u32 cpu, const struct cpumask *cpumask) __ksym;
extern __u32 scx_bpf_nr_cpu_ids(void) __ksym;
extern __s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern bool scx_bpf_test_and_clear_cpu_idle(__s32 cpu) __ksym;
extern void scx_bpf_kick_cpu(__s32 cpu, __u64 flags) __ksym;
extern __s32 scx_bpf_create_dsq(__u64 dsq_id, __s32 node) __ksym;
extern __s32 scx_bpf_dsq_nr_queued(__u64 dsq_id) __ksym;
extern __u32 scx_bpf_reenqueue_local(void) __ksym;
/* Of 6.12, and their names from 6.13 on. */
extern void scx_bpf_dispatch(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 enq_flags) __ksym __weak;
extern bool scx_bpf_consume(__u64 dsq_id) __ksym __weak;
extern void scx_bpf_dsq_insert(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 enq_flags) __ksym __weak;
extern bool scx_bpf_dsq_move_to_local(__u64 dsq_id) __ksym __weak;

static __always_inline void insert(struct task_struct *p, __u64 queue, __u64 slice_ns, __u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert))
		scx_bpf_dsq_insert(p, queue, slice_ns, flags);
	else
		scx_bpf_dispatch(p, queue, slice_ns, flags);
}

static __always_inline bool take_from(__u64 queue)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local))
		return scx_bpf_dsq_move_to_local(queue);
	return scx_bpf_consume(queue);
}

#endif
