#!/bin/sh
# A host's settings as files below $1, and the few programs that change them, for trials of prepare and teardown.
# shellcheck disable=SC2016  # what is quoted is for the programs it makes
set -eu
root=$1
put() { mkdir -p "$(dirname "$root$1")"; printf '%b' "$2" >"$root$1"; }
program() { mkdir -p "$root/usr/sbin"; printf '#!/bin/sh\nset -eu\n%b' "$2" >"$root/usr/sbin/$1"; chmod 755 "$root/usr/sbin/$1"; }

cpu=/sys/devices/system/cpu
for n in 0 1 2; do
  put $cpu/cpu$n/cpufreq/scaling_governor 'powersave\n'
  put $cpu/cpu$n/cpuidle/state1/disable '0\n'
done
put $cpu/intel_pstate/no_turbo '0\n'
put /sys/kernel/mm/transparent_hugepage/enabled 'always [madvise] never\n'
put /proc/sys/kernel/numa_balancing '1\n'
put /sys/module/zswap/parameters/enabled 'N\n'
put /sys/module/zswap/parameters/max_pool_percent '20\n'
head='Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n'
put /proc/swaps "$head/swap.img                               file\t\t2097148\t\t0\t\t-2\n/dev/sdb2                               partition\t1048572\t\t0\t\t5\n"
put /proc/mounts '/dev/sda1 / ext4 rw,relatime 0 0\n'
put /proc/cmdline 'BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro\n'
put /etc/default/grub 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n'
put /boot/grub/grub.cfg 'linux /vmlinuz root=/dev/sda1 ro quiet\n'
put /run/irqbalance active
mkdir -p "$root/sys/fs/resctrl" "$root/etc/default/grub.d"

program swapoff 'f=$SUREFOOT_ROOT/proc/swaps; grep -v "^$1 " "$f" >"$f.new"; mv "$f.new" "$f"\n'
program swapon 'f=$SUREFOOT_ROOT/proc/swaps
case $1 in
  -p) printf "%-40spartition\\t1048572\\t\\t0\\t\\t%s\\n" "$3" "$2" >>"$f" ;;
  *) printf "%-40sfile\\t\\t2097148\\t\\t0\\t\\t-2\\n" "$1" >>"$f" ;;
esac\n'
program mount 'echo "$3 $4 $2 rw,relatime 0 0" >>"$SUREFOOT_ROOT/proc/mounts"\n'
program umount 'f=$SUREFOOT_ROOT/proc/mounts; grep -v " $1 " "$f" >"$f.new"; mv "$f.new" "$f"\n'
program update-grub 'r=$SUREFOOT_ROOT; GRUB_CMDLINE_LINUX_DEFAULT=quiet
for f in "$r"/etc/default/grub.d/*.cfg; do [ ! -e "$f" ] || . "$f"; done
printf "linux /vmlinuz root=/dev/sda1 ro %s\\n" "$GRUB_CMDLINE_LINUX_DEFAULT" >"$r/boot/grub/grub.cfg"\n'
program systemctl 'f=$SUREFOOT_ROOT/run/irqbalance
case "$1 $2" in
  "is-active irqbalance") cat "$f"; [ "$(cat "$f")" = active ] || exit 3 ;;
  "stop irqbalance") printf inactive >"$f" ;;
  "start irqbalance") printf active >"$f" ;;
  *) exit 1 ;;
esac\n'
