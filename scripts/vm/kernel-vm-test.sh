#!/usr/bin/env bash
# Tests of surefoot-linux on a stock Debian kernel, in a virtual machine (docs/test-kernel.md).
#   scripts/vm/kernel-vm-test.sh [NAME...]     only tests whose name contains one of NAME
set -euo pipefail
scripts/vm/kernel-vm-deps.sh
built=$(cargo test --release --locked --workspace --test kernel --no-run --message-format=json-render-diagnostics)
program=$(sed -n 's/.*"name":"kernel".*"executable":"\([^"]*\)".*/\1/p' <<<"$built" | tail -n 1)
[ -n "$program" ] || { echo "surefoot: cargo named no test program" >&2; exit 1; }
scripts/vm/kernel-vm.sh "$program" --ignored --test-threads=1 "$@"
