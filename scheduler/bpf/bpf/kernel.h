/* The few types of the kernel that our programs read. libbpf moves each access to where the running kernel has the field (CO-RE). */
#ifndef SUREFOOT_KERNEL_H
#define SUREFOOT_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;

enum { BPF_MAP_TYPE_ARRAY = 2 };
enum { BPF_F_MMAPABLE = 1U << 10 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	int level;
	struct kernfs_node *kn;
	struct cgroup *ancestors[];
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
	struct cgroup *dfl_cgrp;
};

struct sched_ext_entity {
	__u32 flags;
	__u64 slice;
};

struct task_struct {
	int on_cpu;
	int pid;
	unsigned short migration_disabled;
	const struct cpumask *cpus_ptr;
	struct sched_ext_entity scx;
	struct css_set *cgroups;
};

#pragma clang attribute pop

/* Its number depends on how the kernel was built. */
enum cgroup_subsys_id {
	cpuset_cgrp_id = 0,
};

#endif
