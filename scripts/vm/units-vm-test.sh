#!/usr/bin/env bash
# The packaged units under a real systemd, on a stock Debian kernel, in a virtual machine in software emulation (docs/test-kernel.md): started,
# killed, hung, in a crash loop, over a power cut, removed. As root (a Debian root is made with mmdebstrap, once).
#   scripts/vm/units-vm-test.sh
# SUREFOOT_VM_SLOWNESS   how often as long everything may take, on a host that is busy with other things (1): all limits of the units and
#                        of the test are multiplied by it
# SUREFOOT_VM_TIMEOUT_S  of each boot (900)
# SUREFOOT_BINARIES      a folder with the two binaries; default: they are built
set -euo pipefail
dir=${SUREFOOT_VM_DIR:-out/kernel-vm}
slowness=${SUREFOOT_VM_SLOWNESS:-1}
limit_s=${SUREFOOT_VM_TIMEOUT_S:-$((900 * slowness))}
fail() { printf 'surefoot: %s\n' "$1" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "make test-units-vm makes a Debian root with its owners: run it as root"
scripts/vm/kernel-vm-deps.sh "$dir"
binaries=${SUREFOOT_BINARIES:-}
if [ -z "$binaries" ]; then
  read -ra bpf <<<"$(scripts/bpf-flags.sh)"
  cargo build --release --locked --workspace "${bpf[@]}" --bins
  binaries=target/release
fi

# A disk with systemd, once: nothing of Surefoot is on it. A machine id that is there makes no boot the first one. What nobody asks for
# only takes time in emulation.
disk=$dir/bookworm.ext4
# shellcheck disable=SC2016  # the hook's own $1
scripts/vm/kernel-vm-disk.sh "$disk" --include=systemd,systemd-sysv,dbus,procps \
  --customize-hook='echo 0123456789abcdef0123456789abcdef >"$1/etc/machine-id"' \
  --customize-hook='for u in getty@tty1.service serial-getty@ttyS0.service systemd-logind.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer e2scrub_all.timer e2scrub_reap.service systemd-pcrphase.service systemd-pcrphase-sysinit.service; do ln -sf /dev/null "$1/etc/systemd/system/$u"; done'

dir=$(cd "$dir" && pwd)
work=$(mktemp -d "$dir/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp --sparse=always "$disk" "$work/disk"
mkdir -p "$work/image"/{dev,proc,sys,root}
scripts/vm/kernel-vm-image.sh "$dir" "$work/image" virtio_pci virtio_blk 9pnet_virtio 9p ext4 crc32c_generic fuse
install -m 755 scripts/vm/units-vm/init "$work/image/init"
(cd "$work/image" && find . | "$dir/root/bin/busybox" cpio -o -H newc -R 0:0 2>/dev/null | gzip -1) >"$work/initrd"
mkdir "$work/share"
scripts/dist/stage.sh "$work/share/archive" "$binaries"
cp scripts/vm/units-vm/{guest.sh,feed.pl,platform.toml} "$work/share/"

# boot PHASE CPUS: with fewer than 8 CPUs services get quotas (cpu.max), else whole cores (cpuset.cpus).
boot() {
  echo "surefoot: boot $1, $2 CPUs"
  SUREFOOT_VM_TIMEOUT_S=$limit_s scripts/vm/kernel-vm-boot.sh "$dir" "$work" \
    "systemd.show_status=0 systemd.wants=guest.service phase=$1 slowness=$slowness" \
    -cpu max,vendor=GenuineIntel,l3-cache=on -smp "$2,sockets=1,cores=$2,threads=1" -m 1024 \
    -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe"
}
status=0
boot 1 2 || status=1
boot 2 8 || status=1
exit "$status"
