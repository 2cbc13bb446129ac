#!/usr/bin/env bash
# How good the models are, at the papers' scale, on virtual Servers 1, 2 and 3: the figures of docs/benchmarks.md, "Models".
#
#   scripts/bench_models.sh [FOLDER]     default out/bench-models; resumes: a step whose result is there is not done again
#
# About 4 GB of disk, an hour on two cores. Seeds are fixed: a second run gives the same figures.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-out/bench-models}
python=${PYTHON:-.venv/bin/python}
export MLFLOW_TRACKING_URI="sqlite:///$out/mlflow.db"
mkdir -p "$out"

# The papers hold out 30 % (OSML+, Sec. 4.5); everything else is params.yaml's but Model-A's dropout (docs/benchmarks.md).
"$python" - "$out/params.yaml" <<'PY'
import sys
import yaml

with open("params.yaml", encoding="utf-8") as file:
    values = yaml.safe_load(file)
values["label"]["test_fraction"] = 0.3
values["train"]["a"]["dropout"] = 0.0  # planes are many
values["datasets"] = {}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    yaml.safe_dump(values, file)
PY

# once RESULT COMMAND...: unless the result is there
once() {
  local result=$1
  shift
  if [ -e "$result" ]; then return; fi
  printf 'bench-models: %s\n' "$*" >&2
  "$@" >"$out/last.log" || { cat "$out/last.log" >&2; exit 1; }
}

stage() { "$python" -m "pipelines.$1" "${@:2}" --params "$out/params.yaml"; }

collect() { # CAMPAIGN SERVER NAME
  once "$out/data/$3/manifest.json" target/release/surefootd sweep "examples/$1.toml" --server "virtual:$2" --out "$out/data/$3" --resume
  once "$out/$3/label/label.json" stage label --data "$out/data/$3" --out "$out/$3/label"
  once "$out/$3/rows/rows.json" stage rows --data "$out/data/$3" --labels "$out/$3/label" --out "$out/$3/rows"
}
collect paper-server-1 server-1 server-1
collect paper-unseen-server-1 server-1 unseen-server-1
collect paper-server-2 server-2 server-2
collect paper-server-3 server-3 server-3

of() { printf '%s\n' --rows "$out/$1/rows" --labels "$out/$1/label"; }
mapfile -t one < <(of server-1)
for model in a b; do
  once "$out/server-1/train/$model/model.json" stage train --model "$model" --name server-1 "${one[@]}" --out "$out/server-1/train/$model"
done
once "$out/server-1/train/c/model.json" stage train --model c --name server-1 "${one[@]}" --b "$out/server-1/train/b" \
  --out "$out/server-1/train/c"
once "$out/server-1/compare/compare.json" stage compare "${one[@]}" --out "$out/server-1/compare"
once "$out/server-1/evaluate/metrics.json" stage evaluate "${one[@]}" --models "$out/server-1/train" \
  --compare "$out/server-1/compare" --out "$out/server-1/evaluate"
for name in unseen-server-1 server-2 server-3; do
  mapfile -t other < <(of "$name")
  once "$out/server-1/evaluate/foreign/$name/generalise.json" stage generalise foreign "${other[@]}" --models "$out/server-1/train" \
    --on "$out/data/server-1/manifest.json" --out "$out/server-1/evaluate/foreign/$name"
done
for name in server-2 server-3; do
  mapfile -t other < <(of "$name")
  once "$out/$name/evaluate/transfer/transfer.json" stage transfer "${other[@]}" --models "$out/server-1/train" \
    --out "$out/$name/evaluate/transfer"
done
once "$out/server-1/evaluate/leave-one-out/generalise.json" stage generalise services "${one[@]}" \
  --out "$out/server-1/evaluate/leave-one-out"
stage report --name server-1 "${one[@]}" --models "$out/server-1/train" --evaluate "$out/server-1/evaluate" \
  --out "$out/server-1/report" >&2

for file in "$out"/*/evaluate/{metrics,foreign/*/generalise,transfer/transfer,leave-one-out/generalise}.json; do
  if [ -e "$file" ]; then printf '%s\n' "$file"; cat "$file"; fi
done
