#!/usr/bin/env bash
# old-userland.sh [SUITE] - the binary of make dist in an old Debian's userland: version, check, a closed loop, removal.
#
# SUITE: buster (glibc 2.28, the default) from wherever this machine's apt gets Debian; where that mirror has it no more,
# bullseye (2.31) is taken, and said. Needs root (chroot) and mmdebstrap.
# SUREFOOT_OLD_ROOT  an unpacked userland to use instead
set -euo pipefail
cd "$(dirname "$0")/../.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
archive=dist/surefootd-$version-x86_64.tar.gz
[ -e "$archive" ] || { echo "test-old-userland: $archive is missing. Run: make dist" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "test-old-userland: chroot needs root" >&2; exit 1; }
work=$(mktemp -d)
trap 'umount "$work/root/proc" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

make_root() {
  local suite=$1 uri options=() line
  uri=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1)
  while IFS= read -r line; do [ -z "$line" ] || options+=("--aptopt=$line"); done < <(
    apt-config dump | grep -E '^Acquire::(Check-Valid-Until|Check-Date|http::Proxy|https::Proxy) ' | grep -v '""' || true
  )
  # Keys of releases that are past their life are not on this machine; nothing of it leaves the chroot.
  echo "deb [trusted=yes] ${uri:?no Debian archive among the apt sources} $suite main" >"$work/sources.list"
  mmdebstrap --format=directory --variant=minbase "${options[@]}" --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$work/root" \
    "$work/sources.list" >"$work/log" 2>&1
}

if [ -n "${SUREFOOT_OLD_ROOT:-}" ]; then
  cp -a "$SUREFOOT_OLD_ROOT" "$work/root"
elif ! make_root "${1:-buster}"; then
  echo "test-old-userland: ${1:-buster} cannot be had from this machine's mirror ($(grep -m 1 -E '^E: |404' "$work/log" || tail -n 1 "$work/log")); bullseye instead"
  rm -rf "$work/root"
  make_root bullseye || { tail -n 5 "$work/log" >&2; exit 1; }
fi
inside() { chroot "$work/root" "$@"; }
mount -t proc proc "$work/root/proc"
# shellcheck disable=SC2016 # expanded inside
echo "test-old-userland: $(inside sh -c '. /etc/os-release; echo $PRETTY_NAME'), $(inside ldd --version | head -n 1)"

mkdir -p "$work/root/opt" "$work/root/workloads"
tar -C "$work/root/opt" -xzf "$archive"
cp workloads/sets/demo/three-lc-arrivals.toml "$work/root/workloads/"
dir=/opt/surefootd-$version-x86_64
inside sh -c "cd $dir && sha256sum --check --quiet SHA256SUMS"
inside find / -xdev -not -path "/opt/*" -not -path "/proc/*" | LC_ALL=C sort >"$work/before"
inside "$dir/install.sh" >/dev/null
inside surefootd --version
inside surefoot-loadgen --version
inside test -s /usr/share/man/man1/surefootd-run.1 -a -s /usr/share/bash-completion/completions/surefootd
inside surefootd check --json >"$work/check.json"
python3 -m json.tool "$work/check.json" >/dev/null
inside surefootd eval --workloads /workloads --policies unmanaged,parties --platform server-1 --out /tmp/eval --json >"$work/eval.json"
python3 -m json.tool "$work/eval.json" >/dev/null
rm -r "$work/root/tmp/eval"
inside "$dir/install.sh" --purge
inside find / -xdev -not -path "/opt/*" -not -path "/proc/*" | LC_ALL=C sort >"$work/after"
# useradd keeps copies of the files that it changes (passwd-); nothing of ours is left.
left=$(comm -13 "$work/before" "$work/after" | grep -vE '^/etc/(passwd|shadow|group|gshadow|subuid|subgid)-$' || true)
[ -z "$left" ] || { printf 'test-old-userland: left behind after --purge:\n%s\n' "$left" >&2; exit 1; }
echo "test-old-userland: version, check, eval and purge work"
