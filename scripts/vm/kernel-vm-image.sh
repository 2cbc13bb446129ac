#!/usr/bin/env bash
# kernel-vm-image.sh DIR IMAGE MODULE... - what every first file system of a virtual machine begins with, in the folder IMAGE: busybox, and
# the kernel modules and what they need, in the order of /modules/order. DIR is what scripts/vm/kernel-vm-deps.sh made.
set -euo pipefail
dir=$1
image=$2
shift 2
PATH=$PATH:/usr/sbin:/sbin
version=$(basename "$dir"/root/boot/vmlinuz-* | sed 's/^vmlinuz-//')

mkdir -p "$image"/{bin,modules}
cp "$dir/root/bin/busybox" "$image/bin/busybox"
# Empty where the kernel has all of them built in.
: >"$image/modules/order"
modprobe -d "$dir/root" -S "$version" --show-depends -a "$@" |
  sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' |
  while read -r module; do
    name=$(basename "$module")
    case $module in
      *.xz) xz -dc "$module" >"$image/modules/${name%.xz}" ;;
      *.zst) zstd -qdc "$module" >"$image/modules/${name%.zst}" ;;
      *) cp "$module" "$image/modules/" ;;
    esac
    echo "${name%%.ko*}.ko" >>"$image/modules/order"
  done
