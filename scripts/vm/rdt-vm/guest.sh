#!/bin/bash
# Second process of the machine of scripts/vm/rdt-vm.sh: the file systems that a node has, then the command.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 RUST_BACKTRACE=1
argument() { sed -n "s/.* $1=\([^ ]*\).*/\1/p" /proc/cmdline; }
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t debugfs debugfs /sys/kernel/debug
mount -t cgroup2 -o nsdelegate cgroup /sys/fs/cgroup
mkswap /dev/vdb >/dev/null
swapon /dev/vdb
echo Y >/sys/module/zswap/parameters/enabled
ip link set lo up
hostname guest
case $(argument surefoot.resctrl) in
  no) ;;
  default) mount -t resctrl resctrl /sys/fs/resctrl ;;
  *) mount -t resctrl -o "$(argument surefoot.resctrl)" resctrl /sys/fs/resctrl ;;
esac || { echo "surefoot-vm: status 125"; echo o >/proc/sysrq-trigger; sleep 20; }
cd "$(cat /run/share/checkout)" || cd /
echo "surefoot-vm: kernel $(uname -r), $(argument surefoot.config), $(nproc) CPUs, up after $(cut -d ' ' -f 1 /proc/uptime) s"
setsid --wait bash /run/share/command </dev/null
echo "surefoot-vm: status $?"
sleep 0.3
echo o >/proc/sysrq-trigger
sleep 20
