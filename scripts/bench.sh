#!/usr/bin/env bash
# Speed and memory of every part. Figures of note go to docs/benchmarks.md with machine, command and date.
set -euo pipefail
out=${1:-out/bench}
mkdir -p "$out"
bin=target/release

# bench CRATE FILE: figures of a crate's benchmarks; cargo's whole output is in FILE.log
bench() {
  if ! cargo bench --locked -p "$1" >"$2.log" 2>&1; then
    tail -n 40 "$2.log" >&2
    echo "bench: cargo bench -p $1 failed (all of it: $2.log)" >&2
    return 1
  fi
  # no figures is no failure
  { grep -E 'time:|thrpt:|^[a-z_/ ]+$' "$2.log" || [ $? = 1 ]; } | tee "$2"
}

{
  echo "machine: $(nproc) CPUs, $(awk -F ': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo)"
  echo "kernel:  $(uname -r)"
  echo "date:    $(date -u +%F)"
  echo "commit:  $(git rev-parse --short HEAD)"
} | tee "$out/machine.txt"

echo "== virtual server: steady cases/s and ticks/s on one core"
bench surefoot-vserver "$out/vserver.txt"

echo "== models: one inference, one on-line learning step"
bench surefoot-learn "$out/learn.txt"

echo "== sweep of the demo campaign to Parquet, $(nproc) threads: wall time and peak memory, five runs"
for i in 1 2 3 4 5; do
  rm -rf "$out/sweep"
  /usr/bin/env python3 - "$bin/surefootd" sweep examples/demo-virtual.toml --server virtual:server-1 --out "$out/sweep" --progress none <<'P'
import resource, subprocess, sys, time
start = time.monotonic()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(f"wall {time.monotonic() - start:.2f} s, peak RSS {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB")
P
done | tee "$out/sweep.txt"

echo "== load generator against an in-process server"
"$bin/surefoot-loadgen" selftest | tee "$out/loadgen.txt"
