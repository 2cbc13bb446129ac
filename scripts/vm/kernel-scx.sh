#!/usr/bin/env bash
# A kernel 6.12 with sched_ext, which Debian's own lack: from Debian's source, with a small configuration (scripts/vm/kernel-scx.config), as
# scripts/vm/kernel-vm.sh boots it. Once: what is there is kept, and a run that was interrupted goes on where it ended.
#   scripts/vm/kernel-scx.sh [FOLDER]     default out/kernel-vm-6.12-scx; `scripts/vm/kernel-vm-test.sh -k 6.12-scx` calls it
# It takes about 4 GB of disk and, on two idle cores, some 15 minutes; 7 MB stay. The compiler's words are in FOLDER/build/log.
# SUREFOOT_JOBS: compilers at a time (the number of cores)
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-out/kernel-vm-6.12-scx}
jobs=${SUREFOOT_JOBS:-$(nproc)}
config=$PWD/scripts/vm/kernel-scx.config
build=$dir/build
fail() { printf 'surefoot: %s\n' "$1" >&2; exit 1; }
say() { printf 'surefoot: %s\n' "$1"; }

wanted="linux-source-6.12 $(sha256sum <"$config" | cut -c 1-16)"
is_there() { [ "$(cut -d ' ' -f 1,2 "$dir/package" 2>/dev/null || true)" = "$wanted" ] && [ -x "$dir/root/bin/busybox" ]; }
if is_there; then exit 0; fi

[ "$(uname -m)" = x86_64 ] || fail "the kernel is built for x86 on x86. Run it there."
command -v apt-get >/dev/null || fail "no apt-get. The source comes from Debian's packages: run this on Debian 12."
missing=()
for package in gcc make bc bison flex libelf-dev dwarves cpio xz-utils kmod dpkg qemu-system-x86; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then scripts/install-packages.sh scripts/vm/kernel-scx.sh "${missing[@]}"; fi

mkdir -p "$build"
exec 9>"$dir/lock"
flock -n 9 || { say "another run makes the kernel in $dir: waiting for it"; flock 9; }
if is_there; then exit 0; fi
PATH=$PATH:/usr/sbin:/sbin
build=$(cd "$build" && pwd)
free_mb() { df -Pm "$build" | awk 'NR == 2 { print $4 }'; }

if [ ! -s "$build/source/Makefile" ]; then
  [ "$(free_mb)" -ge 4500 ] || fail "$(free_mb) MB are free in $build, and the kernel takes 4500 while it is built. Make room, or name another folder."
  say "1/4: fetching linux-source-6.12 (150 MB)"
  rm -rf "$build/debs" "$build/unpacked" "$build/new" && mkdir "$build/debs"
  (cd "$build/debs" && apt-get download -q -o APT::Sandbox::User=root linux-source-6.12 busybox-static) ||
    fail "cannot fetch linux-source-6.12. Add bookworm-security or bookworm-backports to apt's sources, run 'sudo apt-get update', then this again."
  for deb in "$build"/debs/*.deb; do dpkg-deb -x "$deb" "$build/unpacked"; done
  dpkg-deb -f "$build"/debs/linux-source-6.12_*.deb Version >"$build/version"
  say "2/4: unpacking it (1.4 GB)"
  mkdir "$build/new"
  # A sixth of the source is registers of graphics cards.
  tar -xf "$build/unpacked/usr/src/linux-source-6.12.tar.xz" -C "$build/new" --strip-components=1 --exclude='*/drivers/gpu/drm/amd/include/*'
  rm -rf "$build/debs" "$build/unpacked/usr"
  mv "$build/new" "$build/source"
fi

# By setsid, since the kernel groups tasks so: only the value of the group keeps the build behind the others.
maker=
trap '[ -z "$maker" ] || kill -- -"$maker" 2>/dev/null || true' EXIT
start_make() {
  # shellcheck disable=SC2016  # for the inner shell
  setsid bash -c '(echo 19 >/proc/self/autogroup) 2>/dev/null || true; exec nice -n 19 make -C "$@"' make "$build/source" \
    O="$build/objects" LOCALVERSION=-surefoot-scx KBUILD_BUILD_USER=surefoot KBUILD_BUILD_HOST=surefoot "$@" >>"$build/log" 2>&1 &
  maker=$!
}
finish_make() {
  local status=0
  wait "$maker" || status=$?
  maker=
  return "$status"
}
make_kernel() { start_make "$@" && finish_make; }
: >"$build/log"
say "3/4: configuring"
mkdir -p "$build/objects"
if ! cmp -s "$config" "$build/objects/surefoot.config"; then
  make_kernel tinyconfig || fail "make tinyconfig failed. See $build/log"
  (cd "$build/objects" && ../source/scripts/kconfig/merge_config.sh -m .config "$config") >>"$build/log" 2>&1
  make_kernel olddefconfig || fail "make olddefconfig failed. See $build/log"
  lost=$(grep '^CONFIG_' "$config" | grep -vxFf "$build/objects/.config" || true)
  [ -z "$lost" ] || fail "the kernel's configuration does not keep $(xargs <<<"$lost"). See $build/objects/.config"
  cp "$config" "$build/objects/surefoot.config"
fi

say "4/4: compiling with $jobs jobs; the log is $build/log"
began=$SECONDS
start_make -j "$jobs" bzImage
while kill -0 "$maker" 2>/dev/null; do
  sleep 1
  # One line a minute.
  if (((SECONDS - began) % 60 == 0)); then
    say "$(grep -c '^  \(CC\|AS\) ' "$build/log" || true) files compiled in $(((SECONDS - began) / 60)) min, $(tail -n 1 "$build/log" | cut -c 1-60)"
  fi
done
finish_make || { tail -n 5 "$build/log" >&2; fail "the kernel was not built. See $build/log; another run goes on where this one ended."; }

version=$(cat "$build/objects/include/config/kernel.release")
root=$build/root
rm -rf "$root" && mkdir -p "$root/boot" "$root/bin" "$root/lib/modules/$version"
cp "$build/objects/arch/x86/boot/bzImage" "$root/boot/vmlinuz-$version"
cp "$build/objects/.config" "$root/boot/config-$version"
cp "$build/unpacked/bin/busybox" "$root/bin/busybox"
# All is built in: modprobe finds so by this list.
cp "$build/objects"/modules.builtin "$build/objects"/modules.builtin.modinfo "$root/lib/modules/$version/"
: >"$root/lib/modules/$version/modules.order"
depmod -b "$root" "$version"
rm -rf "$dir/root"
mv "$root" "$dir/root"
echo "$wanted $(cat "$build/version")" >"$dir/package"
rm -rf "$build"
say "kernel $version is in $dir"
