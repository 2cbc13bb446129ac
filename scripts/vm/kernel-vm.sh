#!/usr/bin/env bash
# Run a program of this machine as root under a stock Debian kernel, in a virtual machine in software emulation (no /dev/kvm
# needed): cgroup v2 with all controllers, swap with zswap before it, 2 sockets = 2 NUMA nodes = 2 L3 domains of 2 cores with
# 2 threads each. The status of the program is the status of this script; 124 where it took too long, 125 where the machine
# ended without a status.
#   scripts/vm/kernel-vm.sh PROGRAM [ARG...]     after scripts/vm/kernel-vm-deps.sh; SUREFOOT_VM_TIMEOUT_S (default 600)
set -euo pipefail
dir=${SUREFOOT_VM_DIR:-out/kernel-vm}

fail() { printf 'surefoot: %s\n' "$1" >&2; exit 125; }

[ $# -ge 1 ] || fail "usage: scripts/vm/kernel-vm.sh PROGRAM [ARG...]"
[ -x "$1" ] || fail "$1 is no program. Build it first."
[ -x "$dir/root/bin/busybox" ] || fail "no kernel in $dir. Run scripts/vm/kernel-vm-deps.sh first."
program=$1
shift
PATH=$PATH:/usr/sbin:/sbin
dir=$(cd "$dir" && pwd)
busybox=$dir/root/bin/busybox

# Each run has its own folder: two at once do not meet.
work=$(mktemp -d "$dir/run.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The first file system: busybox, the modules that reach the share and the disk, the libraries of the program.
image=$work/image
mkdir -p "$image"/{dev,etc,proc,sys,tmp,run,var,share}
scripts/vm/kernel-vm-image.sh "$dir" "$image" virtio_pci virtio_blk 9pnet_virtio 9p
ldd "$program" | sed -nE 's/^\s*(\S+ => )?(\/\S+) \(.*/\2/p' |
  while read -r library; do
    mkdir -p "$image/$(dirname "$library")"
    cp -L "$library" "$image/$library"
  done
cat >"$image/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t debugfs debug /sys/kernel/debug
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
while read -r m; do insmod "/modules/$m"; done </modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144 share /share
mount -t cgroup2 -o nsdelegate cgroup /sys/fs/cgroup
mkswap /dev/vda >/dev/null
swapon /dev/vda
echo Y >/sys/module/zswap/parameters/enabled
cd /tmp
export HOME=/tmp RUST_BACKTRACE=1
echo "surefoot-vm: kernel $(uname -r), $(nproc) CPUs, up after $(cut -d ' ' -f 1 /proc/uptime) s"
. /share/command
echo "surefoot-vm: status $?"
poweroff -f
INIT
chmod +x "$image/init"
(cd "$image" && find . | "$busybox" cpio -o -H newc -R 0:0 2>/dev/null | gzip -1) >"$work/initrd"

share=$work/share
mkdir -p "$share"
cp "$program" "$share/program"
# How often tests do what they do at random is told by the environment.
for name in "${!SUREFOOT_COSMOS_@}" "${!SUREFOOT_LEND_@}" "${!SUREFOOT_SCX_@}" "${!SUREFOOT_VM_SLOWNESS@}"; do printf 'export %s=%q\n' "$name" "${!name}"; done >"$share/command"
printf '%q ' /share/program "$@" >>"$share/command"
truncate -s 512M "$work/swap"

# cx16 off: emulated cmpxchg16b, which a kernel's allocator uses in every call, now and then leaves a register of its own as flags, and the
# kernel dies of a double fault.
scripts/vm/kernel-vm-boot.sh "$dir" "$work" "" -cpu max,vendor=GenuineIntel,l3-cache=on,cx16=off -smp 8,sockets=2,cores=2,threads=2 -m 1536 \
  -object memory-backend-ram,id=m0,size=768M -object memory-backend-ram,id=m1,size=768M \
  -numa node,nodeid=0,cpus=0-3,memdev=m0 -numa node,nodeid=1,cpus=4-7,memdev=m1 \
  -drive "file=$work/swap,format=raw,if=virtio,cache=unsafe"
