#!/usr/bin/env bash
# Speed and memory of every part. Figures of note go to docs/benchmarks.md with machine, command and date.
set -euo pipefail
out=${1:-out/bench}
mkdir -p "$out"
bin=target/release

{
  echo "machine: $(nproc) CPUs, $(awk -F ': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo)"
  echo "kernel:  $(uname -r)"
  echo "date:    $(date -u +%F)"
  echo "commit:  $(git rev-parse --short HEAD)"
} | tee "$out/machine.txt"

echo "== virtual server: steady cases/s and ticks/s on one core"
cargo bench --locked -p surefoot-vserver 2>&1 | grep -E 'time:|thrpt:|^[a-z_/ ]+$' | tee "$out/vserver.txt" || true

echo "== models: one inference, one on-line learning step"
cargo bench --locked -p surefoot-learn 2>&1 | grep -E 'time:|thrpt:|^[a-z_/ ]+$' | tee "$out/learn.txt" || true

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
