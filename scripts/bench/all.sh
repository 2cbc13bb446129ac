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

echo "== policies below a tick: one reading, one window"
bench surefoot-harvest "$out/harvest.txt"
# Without these programs (scripts/bpf-flags.sh) there is nothing to measure.
if [ -z "$(scripts/bpf-flags.sh)" ]; then
  bench surefoot-bpf "$out/bpf.txt"
else
  echo "NOT RUN: programs for the kernel cannot be linked here (scripts/bpf-flags.sh)" | tee "$out/bpf.txt"
fi

# The data go to a folder of their own, 2.5 GB for the paper's campaign, and are removed after each run.
echo "== sweep to Parquet, $(nproc) threads: the demo's campaign five times, linearity, the OSML+ paper's campaign"
python3 scripts/bench/sweep.py "$bin/surefootd" "$out/sweep" | tee "$out/sweep.txt"

echo "== load generator against an in-process server"
"$bin/surefoot-loadgen" selftest | tee "$out/loadgen.txt"

echo "== daemon with six services on this machine (needs root, an engine and the images)"
if scripts/engine.sh && scripts/images.sh; then
  python3 scripts/bench/daemon.py "$bin" "$out/daemon" | tee "$out/daemon.txt"
else
  echo "NOT RUN: see the lines above for what is missing" | tee "$out/daemon.txt"
fi

echo "== a flood of the latency socket (needs root)"
if [ "$(id -u)" = 0 ]; then
  python3 scripts/bench/feed.py "$bin" "$out/feed" | tee "$out/feed.txt"
  python3 scripts/bench/ticks.py "$bin" "$out/ticks" | tee "$out/ticks.txt"
else
  echo "NOT RUN: floods are sent as another user; run it as root" | tee "$out/feed.txt"
fi
