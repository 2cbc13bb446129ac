#!/usr/bin/env bash
# How good the models are, at the papers' scale, on virtual Servers 1, 2 and 3: the figures of docs/benchmarks.md, "Models".
#
#   scripts/bench/models.sh [FOLDER]     default out/bench-models; resumes: a step whose result is there is not done again
#
# About 4 GB of disk, an hour on two cores. Seeds are fixed: a second run gives the same figures.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-out/bench-models}
python=${PYTHON:-.venv/bin/python}
export MLFLOW_TRACKING_URI="sqlite:///$out/mlflow.db"
mkdir -p "$out"

# The papers hold out 30 % (OSML+, Sec. 4.5); everything else is params.yaml's but Model-A's dropout and steps (docs/studies/2026-11-22-models.md).
"$python" - "$out/params.yaml" <<'PY'
import sys
import yaml

with open("params.yaml", encoding="utf-8") as file:
    values = yaml.safe_load(file)
values["label"]["test_fraction"] = 0.3
values["train"]["a"] |= {"dropout": 0.0, "batch": 1024, "min_steps": 15000, "epochs": 20}  # planes are many
values["datasets"] = {}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    yaml.safe_dump(values, file)
PY

# Runs a command and adds a line to $out/times.txt: seconds of wall clock and of CPU, peak MiB, the command
measured() {
  "$python" - "$out/times.txt" "$@" <<'PY'
import resource
import subprocess
import sys
import time

start = time.monotonic()
code = subprocess.run(sys.argv[2:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "a", encoding="utf-8") as file:
    cpu, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    file.write(f"{time.monotonic() - start:.1f}\t{cpu:.1f}\t{mib:.0f}\t{' '.join(sys.argv[2:])}\n")
sys.exit(code)
PY
}

# once RESULT COMMAND...: unless the result is there
once() {
  local result=$1
  shift
  if [ -e "$result" ]; then return; fi
  printf 'bench-models: %s\n' "$*" >&2
  measured "$@" >"$out/last.log" || { cat "$out/last.log" >&2; exit 1; }
}

with=(--params "$out/params.yaml")

collect() { # CAMPAIGN SERVER NAME
  # A manifest is there from the first case on.
  if ! grep -qs '"complete": true' "$out/data/$3/manifest.json"; then
    once "" target/release/surefootd sweep "examples/$1.toml" --server "virtual:$2" --out "$out/data/$3" --resume
  fi
  once "$out/$3/label/label.json" "$python" -m pipelines.label --data "$out/data/$3" --out "$out/$3/label" "${with[@]}"
  once "$out/$3/rows/rows.json" "$python" -m pipelines.rows --data "$out/data/$3" --labels "$out/$3/label" --out "$out/$3/rows" "${with[@]}"
}
collect paper-server-1 server-1 server-1
collect paper-unseen-server-1 server-1 unseen-server-1
collect paper-server-2 server-2 server-2
collect paper-server-3 server-3 server-3

of() { printf '%s\n' --rows "$out/$1/rows" --labels "$out/$1/label"; }
mapfile -t one < <(of server-1)
for model in a b; do
  once "$out/server-1/train/$model/model.json" "$python" -m pipelines.train --model "$model" --name server-1 "${one[@]}" --out "$out/server-1/train/$model" "${with[@]}"
done
once "$out/server-1/train/c/model.json" "$python" -m pipelines.train --model c --name server-1 "${one[@]}" --b "$out/server-1/train/b" \
  --out "$out/server-1/train/c" "${with[@]}"
for model in a ap b bp c; do # OSML's
  once "$out/server-1/train/osml-$model/model.json" "$python" -m pipelines.train --model "osml-$model" --name server-1 "${one[@]}" \
    --out "$out/server-1/train/osml-$model" "${with[@]}"
done
once "$out/server-1/compare/compare.json" "$python" -m pipelines.compare "${one[@]}" --out "$out/server-1/compare" "${with[@]}"
once "$out/server-1/evaluate/metrics.json" "$python" -m pipelines.evaluate "${one[@]}" --models "$out/server-1/train" \
  --compare "$out/server-1/compare" --out "$out/server-1/evaluate" "${with[@]}"
for name in unseen-server-1 server-2 server-3; do
  mapfile -t other < <(of "$name")
  once "$out/server-1/evaluate/foreign/$name/generalise.json" "$python" -m pipelines.generalise foreign "${other[@]}" --models "$out/server-1/train" \
    --on "$out/data/server-1/manifest.json" --taught-rows "$out/server-1/rows" --taught-labels "$out/server-1/label" --out "$out/server-1/evaluate/foreign/$name" "${with[@]}"
done
for name in server-2 server-3; do
  mapfile -t other < <(of "$name")
  once "$out/$name/evaluate/transfer/transfer.json" "$python" -m pipelines.transfer "${other[@]}" --models "$out/server-1/train" \
    --out "$out/$name/evaluate/transfer" "${with[@]}"
done
once "$out/server-1/evaluate/leave-one-out/generalise.json" "$python" -m pipelines.generalise services "${one[@]}" \
  --out "$out/server-1/evaluate/leave-one-out" "${with[@]}"
"$python" -m pipelines.report --name server-1 "${one[@]}" --models "$out/server-1/train" --evaluate "$out/server-1/evaluate" \
  --out "$out/server-1/report" "${with[@]}" >&2

for file in "$out"/*/evaluate/{metrics,foreign/*/generalise,transfer/transfer,leave-one-out/generalise}.json; do
  if [ -e "$file" ]; then printf '%s\n' "$file"; cat "$file"; fi
done

# Wanted: `rows` a million samples a second; label, rows and all of Server 1's trainings within an hour and 8 GiB on two CPUs
printf 'seconds\tCPU s\tMiB\tstep\n'
cat "$out/times.txt"
awk -F'\t' '/pipelines\.(label|rows|train) .*server-1\// && !/unseen/ {s += $1; c += $2; if ($3 > m) m = $3}
  END {printf "label, rows and trainings of Server 1: %.0f s, %.0f CPU s, at most %.0f MiB\n", s, c, m}' "$out/times.txt"
