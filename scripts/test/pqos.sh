#!/usr/bin/env bash
# Debian's pqos and rdtset on resctrlfs, in a mount namespace of their own. Where that cannot be had: CI fails, a user is told.
#   scripts/test/pqos.sh [SUREFOOTD]    the binary; default: target/release/surefootd
set -euo pipefail
surefootd=${1:-${CARGO_TARGET_DIR:-target}/release/surefootd}

not_run() {
  echo "NOT RUN: pqos and rdtset on resctrlfs: $1"
  if [ "${CI:-}" = true ]; then exit 1; fi
  exit 0
}
fail() { printf 'FAILED: %s\n' "$1" >&2; exit 1; }

if [ "${2:-}" != inside ]; then
  PATH=$PATH:/usr/sbin:/sbin
  for command in pqos rdtset cc unshare; do
    command -v "$command" >/dev/null || not_run "no $command (packages intel-cmt-cat, gcc, util-linux)"
  done
  [ "$(id -u)" = 0 ] || not_run "mounting needs root"
  [ -c /dev/fuse ] || not_run "no /dev/fuse (modprobe fuse)"
  [ -x "$surefootd" ] || not_run "no $surefootd (make rust)"
  unshare -m true 2>/dev/null || not_run "mount namespaces are not allowed here"
  exec unshare -m "$0" "$surefootd" inside
fi

work=$(mktemp -d)
daemon=
clean_up() {
  if [ -n "$daemon" ] && kill "$daemon"; then wait "$daemon" || true; fi
  umount -l /sys/fs 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

# As many CPUs as this host has, all behind one cache.
cpus=$(getconf _NPROCESSORS_CONF)
printf 'name = "pqos"\n[cpu]\nphysical_cores = %s\n[llc]\nways = 11\nmb_per_way = 2.0\n[mem]\nmba = true\n' "$cpus" >"$work/platform.toml"
# pqos asks the processor itself whose defaults to write on -R.
vendor=intel
if grep -q AuthenticAMD /proc/cpuinfo; then vendor=amd; fi
mount -t tmpfs none /sys/fs
mkdir /sys/fs/resctrl
"$surefootd" resctrlfs /sys/fs/resctrl --platform "$work/platform.toml" --vendor "$vendor" 2>"$work/log" &
daemon=$!
for _ in $(seq 100); do
  if [ -e /sys/fs/resctrl/schemata ]; then break; fi
  kill -0 "$daemon" 2>/dev/null || fail "surefootd resctrlfs: $(cat "$work/log")"
  sleep 0.1
done
[ -e /sys/fs/resctrl/schemata ] || fail "resctrlfs is not mounted after 10 s: $(cat "$work/log")"

# Both look there for what the processor and the kernel have.
{ printf 'nodev\tresctrl\n'; cat /proc/filesystems; } >"$work/filesystems"
sed 's/^flags.*/& cat_l3 mba cqm cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local rdt_a/' /proc/cpuinfo >"$work/cpuinfo"
mount --bind "$work/filesystems" /proc/filesystems
mount --bind "$work/cpuinfo" /proc/cpuinfo
cc -shared -fPIC -o "$work/perf.so" "$(dirname "$0")/../../tests/pqos-perf.c" -ldl

# pqos ARGUMENTS, then the words that it must say.
says() {
  local words=$1 out
  shift
  out=$(timeout 60 "$@" 2>&1) || fail "$*: $out"
  grep -qE "$words" <<<"$out" || fail "$*: no \"$words\" in: $out"
  echo "ok: $*"
}
holds() { grep -qE "$2" "/sys/fs/resctrl/$1" || fail "$1 has no \"$2\": $(cat "/sys/fs/resctrl/$1")"; }

says 'L3CA COS1 => MASK 0x7ff' pqos -I -s
says 'COS1 => MASK 0xf' pqos -I -e 'llc:1=0xf'
holds COS1/schemata 'L3:0=0*f$'
says 'COS2 => 40' pqos -I -e 'mba:2=40'
holds COS2/schemata 'MB:0= *40'
says 'altered' pqos -I -a 'llc:1=0'
holds COS1/cpus_list '^0$'
says 'Core 0, L2ID [0-9]+, L3ID [0-9]+ => COS1' pqos -I -s
says 'reset successful' pqos -I -R
says 'L3:0=0*3$' rdtset -I -t 'l3=0x3;cpu=0' -c 0 grep -h L3 -r /sys/fs/resctrl --include=schemata
says 'reset successful' pqos -I -R
holds schemata 'L3:0=0*7ff$'
holds cpus_list "^0(-$((cpus - 1)))?\$"
export LD_PRELOAD=$work/perf.so
says '^ +0 +[0-9.]+ +[0-9]+k +[0-9.]+ +[0-9.]+ +[0-9.]+$' pqos -I -m all:0 -t 2
says "^ +$$ .*[0-9.]+\$" pqos -I -p "all:$$" -t 2
unset LD_PRELOAD
[ -z "$(ls /sys/fs/resctrl/mon_groups)" ] || fail "pqos left monitoring groups: $(ls /sys/fs/resctrl/mon_groups)"
echo "pqos and rdtset on resctrlfs: all as on a kernel"
