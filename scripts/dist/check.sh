#!/usr/bin/env bash
# check.sh GLIBC BINARY... - fails where a binary needs a newer glibc, another library, or names a path of this machine.
set -euo pipefail

limit=$1
shift
allowed='libc.so.6 libm.so.6 libgcc_s.so.1 libpthread.so.0 libdl.so.2 librt.so.1 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1'
bad=0
complain() { printf 'dist-check: %s\n' "$*" >&2; bad=1; }

for binary in "$@"; do
  versions=$(readelf --wide --dyn-syms --version-info "$binary" | grep -oE 'GLIBC_[0-9]+(\.[0-9]+)+' | sort -Vu)
  [ -n "$versions" ] || { complain "$binary: no glibc symbol found: is it a dynamic ELF file?"; continue; }
  newest=$(tail -n 1 <<<"${versions//GLIBC_/}")
  [ "$(printf '%s\n%s\n' "$newest" "$limit" | sort -V | tail -n 1)" = "$limit" ] || complain "$binary: needs glibc $newest, want $limit at most"
  while read -r library; do
    [[ " $allowed " == *" $library "* ]] || complain "$binary: needs $library, which old hosts may not have"
  done < <(readelf --dynamic "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  for path in "$PWD/" "$HOME/" "${CARGO_HOME:-$HOME/.cargo}/"; do
    [ "$path" = // ] || ! grep -qaF "$path" "$binary" || complain "$binary: holds a path of this machine: $(grep -aoE "${path}[A-Za-z0-9_./-]*" "$binary" | head -n 1)"
  done
  [ "$bad" != 0 ] || printf 'dist-check: %s: glibc %s at most %s, %s bytes\n' "$(basename "$binary")" "$newest" "$limit" "$(stat -c %s "$binary")"
done
exit "$bad"
