#!/usr/bin/env bash
# kernel-vm-boot.sh DIR WORK APPEND QEMU-ARG... - boot the kernel of DIR (scripts/vm/kernel-vm-deps.sh) in software emulation (no /dev/kvm needed)
# with WORK/initrd, the folder WORK/share by 9p, read-only, and APPEND on its command line. Its console is on stdout and in WORK/console.
# The status is that of the machine's line "surefoot-vm: status N"; 124 where it took too long, 125 where it ended without a status.
# SUREFOOT_VM_TIMEOUT_S  what it may take (600)
# SUREFOOT_VM_BOOT_S     what it may take until it says "surefoot-vm: kernel", else 124 (no bound)
# SUREFOOT_VM_QEMU       another QEMU than the one in PATH
set -euo pipefail
dir=$1 work=$2 append=$3
shift 3
limit_s=${SUREFOOT_VM_TIMEOUT_S:-600}
boot_s=${SUREFOOT_VM_BOOT_S:-$limit_s}
qemu=${SUREFOOT_VM_QEMU:-qemu-system-x86_64}
version=$(basename "$dir"/root/boot/vmlinuz-* | sed 's/^vmlinuz-//')

: >"$work/console"
# Nothing is left of a run that is interrupted.
trap 'kill "$(cat "$work/pid" 2>/dev/null)" 2>/dev/null || true' EXIT
{
  # One thread for all CPUs: with several a kernel that rewrites its own code (static branches) may run half of it.
  timeout --kill-after=10 "$limit_s" "$qemu" -L /usr/share/seabios -L /usr/share/qemu -accel tcg,thread=single \
    -kernel "$dir/root/boot/vmlinuz-$version" -initrd "$work/initrd" \
    -append "console=ttyS0 loglevel=3 panic=-1 random.trust_cpu=on mitigations=off no_timer_check $append" \
    -virtfs "local,path=$work/share,mount_tag=share,security_model=none,readonly=on" \
    -nodefaults -no-user-config -display none -serial stdio -monitor none -no-reboot -pidfile "$work/pid" "$@" </dev/null |
    sed -u 's/\r$//' | tee "$work/console"
} &
machine=$!
if [ "$boot_s" -lt "$limit_s" ]; then
  for ((s = 0; s < boot_s; s++)); do
    if ! kill -0 "$machine" 2>/dev/null || grep -q '^surefoot-vm: kernel' "$work/console"; then break; fi
    sleep 1
  done
  if [ "$s" -ge "$boot_s" ]; then
    kill "$(cat "$work/pid")" || true
    wait "$machine" || true
    printf 'surefoot: the machine was not up after %s s and was stopped\n' "$boot_s" >&2
    exit 124
  fi
fi
status=0
wait "$machine" || status=$?
said=$(sed -n 's/^surefoot-vm: status \([0-9]*\)$/\1/p' "$work/console" | tail -n 1)
[ -z "$said" ] || exit "$said"
[ "$status" != 124 ] || { printf 'surefoot: the machine took longer than %s s and was stopped\n' "$limit_s" >&2; exit 124; }
printf 'surefoot: the machine ended without a status (see its console above)\n' >&2
exit 125
