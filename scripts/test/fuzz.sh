#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]] - libfuzzer on what a node reads from outside, SECONDS (60) for each target (all).
#
# Seeds are in scheduler/fuzz/seeds; what a run finds is kept in scheduler/fuzz/corpus and goes on from there. An input that
# breaks a promise is left in scheduler/fuzz/artifacts/TARGET: mend the code and put the input into seeds/TARGET.
set -euo pipefail
cd "$(dirname "$0")/../.."

VERSION=0.13.2
TOOLS=$PWD/scheduler/fuzz/target/tools
seconds=${1:-60}
shift || true

if ! rustup run nightly rustc --version >/dev/null 2>&1; then
  echo "fuzz: libfuzzer's instrumentation needs a nightly compiler: rustup toolchain install nightly --profile minimal" >&2
  exit 2
fi
if ! "$TOOLS/bin/cargo-fuzz" --version 2>/dev/null | grep -qF "$VERSION"; then
  echo "fuzz: installing cargo-fuzz $VERSION into ${TOOLS#"$PWD"/}"
  cargo install cargo-fuzz --version "$VERSION" --locked --quiet --root "$TOOLS"
fi

fuzz() {
  rustup run nightly "$TOOLS/bin/cargo-fuzz" "$@"
}

export CARGO_TARGET_DIR=$PWD/scheduler/fuzz/target
# Safe Rust throughout but for a few system calls: the address sanitizer would halve the speed for nothing.
fuzz build --fuzz-dir scheduler/fuzz --sanitizer none
mapfile -t targets < <(printf '%s\n' "${@:-$(fuzz list --fuzz-dir scheduler/fuzz)}" | tr ' ' '\n')

failed=()
printf '%-12s %12s %10s %10s %8s  %s\n' target executions coverage features corpus result
for target in "${targets[@]}"; do
  corpus=scheduler/fuzz/corpus/$target
  log=$CARGO_TARGET_DIR/$target.log
  mkdir -p "$corpus" "scheduler/fuzz/artifacts/$target"
  result=held
  # The first folder is the one that new inputs go to.
  "$CARGO_TARGET_DIR/x86_64-unknown-linux-gnu/release/$target" "$corpus" "scheduler/fuzz/seeds/$target" \
      -artifact_prefix="scheduler/fuzz/artifacts/$target/" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
      -max_len=4096 -print_final_stats=1 >"$log" 2>&1 || result="BROKEN, see ${log#"$PWD"/}"
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  cov=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  ft=$(sed -n 's/.* ft: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  printf '%-12s %12s %10s %10s %8s  %s\n' "$target" "${runs:--}" "${cov:--}" "${ft:--}" "$(find "$corpus" -type f | wc -l)" "$result"
  [ "$result" = held ] || failed+=("$target")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "fuzz: promises broken in: ${failed[*]}; the inputs are in scheduler/fuzz/artifacts" >&2
  exit 1
fi
