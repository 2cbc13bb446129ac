#!/usr/bin/env bash
# bpf-flags.sh - flags of `cargo ... --workspace` for a machine that cannot build programs for the kernel; nothing where it can.
set -euo pipefail
if why=$("$(dirname "$0")"/bpf-libraries.sh 2>&1); then exit 0; fi
printf 'surefoot: building without programs for the kernel, so lenders read /proc: %s\n' "$why" >&2
printf '%s\n' '--no-default-features --exclude surefoot-bpf'
