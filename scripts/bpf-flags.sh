#!/usr/bin/env bash
# bpf-flags.sh - flags of `cargo ... --workspace` for a machine that cannot link programs for the kernel; nothing where it can.
# They are linked with a static libelf. From elfutils 0.189 on (Ubuntu 24.04, Debian 13) that one needs a static zstd, which cargo is not told of.
set -euo pipefail
for folder in "/usr/lib/$(uname -m)-linux-gnu" /usr/lib64 /usr/lib; do
  if [ -e "$folder/libelf.a" ]; then break; fi
done
if [ ! -e "$folder/libelf.a" ] || [ ! -e "$folder/libz.a" ]; then
  why="there are no libelf.a and libz.a (packages libelf-dev, zlib1g-dev)"
elif grep -q ZSTD_ "$folder/libelf.a"; then
  why="$folder/libelf.a needs zstd"
else
  exit 0
fi
printf 'surefoot: building without programs for the kernel, so lenders read /proc: %s\n' "$why" >&2
printf '%s\n' '--no-default-features --exclude surefoot-bpf'
