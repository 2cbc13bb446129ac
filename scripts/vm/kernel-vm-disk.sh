#!/usr/bin/env bash
# kernel-vm-disk.sh DISK MMDEBSTRAP-OPTION... - a Debian 12 root as an ext4 image DISK, once: one that is there is whole. As root.
set -euo pipefail
disk=$1
shift
[ ! -s "$disk" ] || exit 0
PATH=$PATH:/usr/sbin:/sbin
command -v mke2fs >/dev/null || "$(dirname "$0")"/../install-packages.sh "it" e2fsprogs
echo "surefoot: making $disk from Debian's packages (some minutes)"
trap 'rm -rf "$disk.root" "$disk.new"' EXIT
rm -rf "$disk.root" "$disk.new"
"$(dirname "$0")"/../debian-root.sh "$disk.root" "$@" >"$disk.log" 2>&1 ||
  { tail -n 5 "$disk.log" >&2; printf 'surefoot: no Debian root; see %s\n' "$disk.log" >&2; exit 1; }
truncate -s 1G "$disk.new"
mke2fs -q -F -t ext4 -d "$disk.root" "$disk.new"
mv "$disk.new" "$disk"
