#!/usr/bin/env bash
# The node's own suite (scheduler/linux/tests/rdt/) on stock Debian kernels whose processor has RDT or AMD QoS (docs/test-kernel.md).
#   scripts/vm/rdt-vm-test.sh [-k "KERNEL..."] [-c "CONFIGURATION[+OPTION]..."] [NAME...]     only tests whose name contains one of NAME
# Default: kernels 6.1 and 6.12, every configuration of scripts/vm/rdt-vm.sh, and some with another mount of resctrl (one+cdp, one+mba_MBps).
# SUREFOOT_RDT_SUITE: the suite's program, built before, with the binaries beside it; default: they are built
# A machine that hangs is tried once more, which the table at the end says. Status 0: every test of every machine passed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/vm/rdt-vm/parts.sh
. scripts/vm/rdt-vm/parts.sh
kernels=$rdt_kernels
configurations="one two e5 icx11 amd one+cdp one+mba_MBps amd+cdp"
while getopts k:c: option; do
  case $option in
    k) kernels=$OPTARG ;;
    c) configurations=$OPTARG ;;
    *) sed -n 's/^# \{0,1\}//; 2,6p' "$0" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))

# shellcheck disable=SC2086  # a list of words
scripts/vm/rdt-vm-deps.sh qemu $kernels disk
program=${SUREFOOT_RDT_SUITE:-}
if [ -z "$program" ]; then
  # The suite runs the node's programs, too.
  read -ra bpf <<<"$(scripts/bpf-flags.sh)"
  cargo build --release --locked --workspace "${bpf[@]}" --bins
  built=$(cargo test --release --locked --workspace "${bpf[@]}" --test rdt --no-run --message-format=json-render-diagnostics)
  program=$(sed -n 's/.*"name":"rdt".*"executable":"\([^"]*\)".*/\1/p' <<<"$built" | tail -n 1)
fi
[ -x "$program" ] || fail "cargo named no test program"

# The checkout is read-only in the machine, at its own path; a target folder elsewhere is not there.
case $program in "$PWD"/*) ;; *) fail "$program is not below $PWD: unset CARGO_TARGET_DIR" ;; esac
console=$(mktemp)
trap 'rm -f "$console"' EXIT
table="kernel  configuration    passed  failed  seconds\n"
failed=0

# One machine; what became of it in `status`, `passed`, `lost` (failed tests) and `took`.
machine() {
  local began=$SECONDS options=()
  [ "$2" = "${2%%+*}" ] || options=(-o "${2#*+}")
  status=0
  scripts/vm/rdt-vm.sh -k "$1" -c "${2%%+*}" ${options[@]+"${options[@]}"} "$program" --ignored --test-threads=1 --color=never "${@:3}" 2>&1 |
    tee "$console" || status=$?
  took=$((SECONDS - began))
  passed=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$console" | tail -n 1)
  lost=$(sed -n 's/^test result: .* \([0-9]*\) failed.*/\1/p' "$console" | tail -n 1)
}

for kernel in $kernels; do
  for configuration in $configurations; do
    printf 'surefoot: kernel %s, %s\n' "$kernel" "$configuration"
    machine "$kernel" "$configuration" "$@"
    note=
    if [ "$status" = 124 ] || [ "$status" = 125 ]; then
      printf 'surefoot: kernel %s, %s: the machine hung or ended: tried once more\n' "$kernel" "$configuration"
      note="  (second try: the first machine ended with status $status)"
      machine "$kernel" "$configuration" "$@"
    fi
    [ "$status" = 0 ] || failed=1
    if [ "$status" = 0 ] && [ "${passed:-0}" = 0 ]; then
      failed=1
      note="$note  (no test has such a name)"
    fi
    [ -n "$passed" ] || note="$note  (no result: status $status)"
    table+=$(printf '%-7s %-16s %6s  %6s  %7s%s' "$kernel" "$configuration" "${passed:--}" "${lost:--}" "$took" "$note")"\n"
  done
done
printf '%b' "$table"
exit "$failed"
