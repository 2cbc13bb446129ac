#!/usr/bin/env bash
# bpf-libraries.sh [ARCH] - the folder of the libelf.a and libz.a that programs for the kernel are linked with; else why there is none, and status 1.
# From elfutils 0.189 on (Ubuntu 24.04, Debian 13) libelf.a needs a static zstd, which cargo is not told of.
set -euo pipefail
fail() { printf '%s\n' "$1" >&2; exit 1; }
arch=${1:-$(uname -m)}
folders=("/usr/lib/$arch-linux-gnu")
if [ "$arch" = "$(uname -m)" ]; then folders+=(/usr/lib64 /usr/lib); fi
for folder in "${folders[@]}"; do
  if [ -e "$folder/libelf.a" ]; then break; fi
done
[ -e "$folder/libelf.a" ] && [ -e "$folder/libz.a" ] || fail "there are no libelf.a and libz.a (packages libelf-dev, zlib1g-dev)"
if grep -q ZSTD_ "$folder/libelf.a"; then fail "$folder/libelf.a needs zstd"; fi
command -v "${CLANG:-clang}" >/dev/null || fail "there is no clang"
printf '%s\n' "$folder"
