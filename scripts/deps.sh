#!/usr/bin/env bash
# Says what this machine lacks; installs it from Debian's or Ubuntu's packages when run as root.
set -euo pipefail

fail() { printf 'surefoot: %s\n' "$1" >&2; exit 1; }

# Daemons live where an ordinary user's PATH does not look.
PATH=$PATH:/usr/sbin:/sbin

# What a package brings is looked up by command, so that other sources of the same tool are fine.
declare -A package_of=(
  [cc]=gcc [clang]=clang [curl]=curl [git]=git [pkg-config]=pkg-config [memcached]=memcached [mmdebstrap]=mmdebstrap [readelf]=binutils [iptables]=iptables [xz]=xz-utils
  [redis-server]=redis-server
)
# Made for x86 alone.
if [ "$(uname -m)" = x86_64 ]; then package_of[pqos]=intel-cmt-cat; fi
missing=()
for command in "${!package_of[@]}"; do
  command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
command -v docker >/dev/null || command -v podman >/dev/null || missing+=(docker.io)
# The client alone is not an engine.
if command -v docker >/dev/null && ! command -v dockerd >/dev/null && ! docker info >/dev/null 2>&1 && ! command -v podman >/dev/null; then
  missing+=(docker.io)
fi
[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
# libbpf is built with the node and brings neither.
[ -e /usr/include/libelf.h ] || missing+=(libelf-dev)
[ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)
# LightGBM's wheel lacks it.
ldconfig -p | grep 'libgomp\.so\.1 ' >/dev/null || missing+=(libgomp1)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)

if [ ${#missing[@]} -gt 0 ]; then "$(dirname "$0")"/install-packages.sh "make" "${missing[@]}"; fi

command -v cargo >/dev/null || fail "no Rust tool chain. Install Rust 1.88 or newer with rustup (see rust-lang.org), then run make again."
have=$(rustc --version | sed -E 's/^rustc ([0-9]+)\.([0-9]+).*/\1 \2/')
read -r major minor <<<"$have"
if [ "$major" -lt 1 ] || { [ "$major" -eq 1 ] && [ "$minor" -lt 88 ]; }; then
  fail "rustc $major.$minor is too old. Surefoot needs 1.88 or newer: 'rustup update'."
fi
for part in fmt clippy; do
  cargo "$part" --version >/dev/null 2>&1 || printf 'surefoot: cargo %s is missing; make lint needs it: rustup component add rustfmt clippy\n' "$part"
done
