#!/usr/bin/env bash
# Tests of surefoot-linux on stock Debian kernels, each in a virtual machine (docs/test-kernel.md).
#   scripts/vm/kernel-vm-test.sh [-k "KERNEL..."] [NAME...]     only tests whose name contains one of NAME
# -k: kernels 6.1 and 6.12 of Debian 12, and 6.12-scx (scripts/vm/kernel-scx.sh: with sched_ext), one after the other; default: the one that
#     SUREFOOT_KERNEL names, else that of linux-image-amd64
# SUREFOOT_COSMOS_PLANS, _KILLS, _SEED, SUREFOOT_LEND_KILLS, SUREFOOT_SCX_MOVES, _KILLS: how often cosmos.rs, lend.rs and scx.rs do what they
# do at random; SUREFOOT_VM_TIMEOUT_S: what a machine may take (600)
set -euo pipefail
kernels=
while getopts k: option; do
  case $option in
    k) kernels=$OPTARG ;;
    *) sed -n 's/^# \{0,1\}//; 2,7p' "$0" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))

if [ -z "$kernels" ]; then scripts/vm/kernel-vm-deps.sh; fi
for kernel in $kernels; do
  if [ "$kernel" = 6.12-scx ]; then
    scripts/vm/kernel-scx.sh "out/kernel-vm-$kernel"
    continue
  fi
  package=$(scripts/vm/kernel-package.sh "$kernel" "out/kernel-vm-$kernel")
  SUREFOOT_KERNEL=$package scripts/vm/kernel-vm-deps.sh "out/kernel-vm-$kernel"
done
read -ra bpf <<<"$(scripts/bpf-flags.sh)"
built=$(cargo test --release --locked --workspace "${bpf[@]}" --test kernel --no-run --message-format=json-render-diagnostics)
program=$(sed -n 's/.*"name":"kernel".*"executable":"\([^"]*\)".*/\1/p' <<<"$built" | tail -n 1)
[ -n "$program" ] || { echo "surefoot: cargo named no test program" >&2; exit 1; }
if [ -z "$kernels" ]; then exec scripts/vm/kernel-vm.sh "$program" --ignored --test-threads=1 --nocapture "$@"; fi
failed=
for kernel in $kernels; do
  printf 'surefoot: kernel %s\n' "$kernel"
  SUREFOOT_VM_DIR=out/kernel-vm-$kernel scripts/vm/kernel-vm.sh "$program" --ignored --test-threads=1 --nocapture "$@" || failed+=" $kernel"
done
[ -z "$failed" ] || { printf 'surefoot: failed on%s\n' "$failed" >&2; exit 1; }
