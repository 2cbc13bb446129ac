#!/usr/bin/env bash
# What `make test-kernel` needs besides scripts/deps.sh: QEMU, and in FOLDER (default out/kernel-vm) a stock Debian kernel with
# its modules and a static busybox, unpacked from Debian's packages. Nothing of them is installed on this machine.
#   scripts/vm/kernel-vm-deps.sh [FOLDER]     SUREFOOT_KERNEL=PACKAGE picks another kernel, e.g. linux-image-6.12.43+deb12-amd64
# SUREFOOT_VM_QEMU: another QEMU is used (scripts/vm/kernel-vm-boot.sh), none is needed here
set -euo pipefail
dir=${1:-out/kernel-vm}

fail() { printf 'surefoot: %s\n' "$1" >&2; exit 1; }

declare -A package_of=([qemu-system-x86_64]=qemu-system-x86 [modprobe]=kmod [dpkg-deb]=dpkg [xz]=xz-utils [zstd]=zstd)
if [ -n "${SUREFOOT_VM_QEMU:-}" ]; then unset "package_of[qemu-system-x86_64]"; fi
missing=()
for command in "${!package_of[@]}"; do
  PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
if [ ${#missing[@]} -gt 0 ]; then "$(dirname "$0")"/../install-packages.sh "make test-kernel" "${missing[@]}"; fi

mkdir -p "$dir"
package=${SUREFOOT_KERNEL:-}
if [ -z "$package" ]; then
  # A kernel that is there already is good enough: what Debian has made newer since is no reason to fetch.
  package=$(cat "$dir/package" 2>/dev/null || true)
fi
if [ -n "$package" ] && [ "$(cat "$dir/package" 2>/dev/null || true)" = "$package" ] && [ -x "$dir/root/bin/busybox" ]; then
  exit 0
fi
command -v apt-get >/dev/null || fail "no apt-get. The kernel comes from Debian's packages: run make test-kernel on Debian or Ubuntu."
latest() { apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1; }
if [ -z "$package" ]; then
  package=$(latest)
  if [ -z "$package" ] && [ "$(id -u)" = 0 ]; then
    apt-get update -q
    package=$(latest)
  fi
  [ -n "$package" ] || fail "apt knows no linux-image-amd64. Run 'sudo apt-get update', or name a kernel in SUREFOOT_KERNEL."
fi
# The cloud kernel has neither zswap nor 9p.
case $package in *cloud*) fail "$package has no zswap and no 9p. Name a generic kernel in SUREFOOT_KERNEL." ;; esac

rm -rf "$dir/new" && mkdir -p "$dir/new/debs" "$dir/new/root"
if ! (cd "$dir/new/debs" && apt-get download -q -o APT::Sandbox::User=root "$package" busybox-static); then
  fail "cannot fetch $package and busybox-static. Run 'sudo apt-get update', then run make test-kernel again."
fi
for deb in "$dir"/new/debs/*.deb; do dpkg-deb -x "$deb" "$dir/new/root"; done
rm -rf "$dir/new/debs"
# From Debian 13 on all is below /usr.
for part in lib bin; do [ -e "$dir/new/root/$part" ] || ln -s "usr/$part" "$dir/new/root/$part"; done
version=$(basename "$dir"/new/root/boot/vmlinuz-* | sed 's/^vmlinuz-//')
for name in CONFIG_ZSWAP=y CONFIG_9P_FS= CONFIG_NET_9P_VIRTIO= CONFIG_CPUSETS=y CONFIG_PSI=y; do
  grep -q "^$name" "$dir/new/root/boot/config-$version" || fail "$package lacks $name. Name a generic kernel in SUREFOOT_KERNEL."
done
PATH=$PATH:/usr/sbin:/sbin depmod -b "$dir/new/root" "$version"
rm -rf "$dir/root" "$dir/package"
mv "$dir/new/root" "$dir/root"
rmdir "$dir/new"
echo "$package" >"$dir/package"
printf 'surefoot: kernel %s is in %s\n' "$version" "$dir"
