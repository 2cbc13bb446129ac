#!/usr/bin/env bash
# The figures of docs/benchmarks.md, "Schedulers", from nothing: campaigns on virtual Servers 1, 2 and 3, models, bundles, evaluations of
# all workload sets, with and without wrong models, and the report.
#
#   scripts/bench/schedulers.sh [FOLDER]     default out/bench-schedulers; resumes: what is there is not done again
#
# POLICIES: comma-separated, all by default. HARMS: ways in which models are wrong, all by default; HARMS= for none. TRAIN_SEED: of the
# models (1); each needs a folder of its own. A second run on such a machine gives the same figures, but for decision times.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-out/bench-schedulers}
policies=${POLICIES:-unmanaged,equal-share,parties-be,parties-stop,heracles,clite,osml,osml-plus,surefoot}
python=${PYTHON:-.venv/bin/python}
surefootd=${SUREFOOTD:-target/release/surefootd}
mkdir -p "$out"
SUREFOOT_KEYS=$(realpath "$out")/keys # the bundles are signed with a key of their own
export SUREFOOT_KEYS

# Planes are many: no dropout, more and smaller batches for Model-A, as in scripts/bench/models.sh; no planes are held out but a tenth.
"$python" - "$out/params.yaml" "${TRAIN_SEED:-1}" <<'PY'
import sys
from pathlib import Path

import yaml

with open("params.yaml", encoding="utf-8") as file:
    values = yaml.safe_load(file)
values["label"]["test_fraction"] = 0.1
values["train"]["seed"] = int(sys.argv[2])
values["train"]["a"] |= {"dropout": 0.0, "batch": 1024, "min_steps": 15000, "epochs": 20}
values["datasets"] = {}
there, text = Path(sys.argv[1]), yaml.safe_dump(values)
if there.exists() and there.read_text(encoding="utf-8") != text:
    sys.exit(f"bench-schedulers: {there}: what is in this folder was trained with other parameters. Give another FOLDER, or remove it")
there.write_text(text, encoding="utf-8")
PY

# run RESULT COMMAND...
run() {
  local result=$1 begin=$SECONDS
  shift
  printf 'bench-schedulers: %s\n' "$*" >&2
  "$@"
  printf 'bench-schedulers: %s after %d s\n' "$result" $((SECONDS - begin)) >&2
}

# once RESULT COMMAND...: unless the result is there
once() {
  if [ ! -e "$1" ]; then run "$@"; fi
}

train() { # N: the models of virtual Server N
  local in="$out/server-$1" model params=(--params "$out/params.yaml")
  mkdir -p "$in"
  export MLFLOW_TRACKING_URI="sqlite:///$in/mlflow.db"
  local rows=(--rows "$in/rows" --labels "$in/label") trained=(--name "loads-server-$1")
  if ! grep -qs '"complete": true' "$in/data/manifest.json"; then # it is there from the first case on
    run "$in/data" "$surefootd" sweep "examples/loads-server-$1.toml" --server "virtual:server-$1" --out "$in/data" --resume
  fi
  once "$in/label/label.json" "$python" -m pipelines.label --data "$in/data" --out "$in/label" "${params[@]}"
  once "$in/rows/rows.json" "$python" -m pipelines.rows --data "$in/data" --labels "$in/label" --out "$in/rows" "${params[@]}"
  for model in a b; do
    once "$in/train/$model/model.json" "$python" -m pipelines.train --model "$model" "${trained[@]}" "${rows[@]}" --out "$in/train/$model" "${params[@]}"
  done
  once "$in/train/c/model.json" "$python" -m pipelines.train --model c "${trained[@]}" "${rows[@]}" --b "$in/train/b" --out "$in/train/c" "${params[@]}"
  for model in a ap b bp c; do
    once "$in/train/osml-$model/model.json" "$python" -m pipelines.train --model "osml-$model" "${trained[@]}" "${rows[@]}" \
      --out "$in/train/osml-$model" "${params[@]}"
  done
  once "$in/evaluate/metrics.json" "$python" -m pipelines.evaluate "${rows[@]}" --models "$in/train" --out "$in/evaluate" "${params[@]}"
}

evaluate() { # N SET OUT BUNDLE-OF POLICIES [OPTION...]: unless this program has evaluated these policies there
  local n=$1 set=$2 to=$3 bundle=$4 who=$5
  shift 5
  if ! "$python" - "$to/eval.json" "$who" "$surefootd" <<'PY'; then
import hashlib
import json
import sys
from pathlib import Path

there, program = Path(sys.argv[1]), hashlib.sha256(Path(sys.argv[3]).read_bytes()).hexdigest()
what = json.loads(there.read_text(encoding="utf-8")) if there.exists() else {}
sys.exit((what.get("policies"), what.get("program_sha256")) != (sys.argv[2].split(","), program))
PY
    run "$to" "$surefootd" eval --platform "server-$n" --workloads "workloads/sets/$set" --policies "$who" \
      --bundle "$out/bundles/server-$bundle" --trust "$SUREFOOT_KEYS/trusted/own.pub.pem" --out "$to" --overwrite "$@"
  fi
}

# A training uses one core. Should one fail, nothing is left behind that goes on by itself.
train 1 &
one=$!
trap wait EXIT
train 2
wait "$one"
train 3
for n in 1 2 3; do
  MLFLOW_TRACKING_URI="sqlite:///$out/server-$n/mlflow.db" once "$out/bundles/server-$n/manifest.json" "$python" -m pipelines.artefact.bundle \
    --data "$out/server-$n/data" --models "$out/server-$n/train" --metrics "$out/server-$n/evaluate/metrics.json" --out "$out/bundles/server-$n"
done

for set in lc3 lc2-be lc3-be lc4-be lc5-be lc6-be churn; do
  evaluate 2 "$set-server-2" "$out/eval/$set-server-2" 2 "$policies" --seeds 5
done
evaluate 1 churn-server-1 "$out/eval/churn-server-1" 1 "$policies" --seeds 5
evaluate 3 churn-server-3 "$out/eval/churn-server-3" 3 "$policies" --seeds 5
evaluate 1 lc3-server-1 "$out/eval/lc3-server-1" 1 "$policies" --seeds 5
evaluate 1 emu-302 "$out/eval/emu-302" 1 "$policies"

# Only who has models can be harmed by wrong ones; parties-stop is what the others are held against.
harmed=$(tr , '\n' <<<"$policies" | grep -xE 'parties-stop|osml|osml-plus|surefoot' | paste -sd, || true)
for harm in ${harmed:+${HARMS-shuffled-a foreign-bundle dead-feed no-counters}}; do
  for set in churn-server-1 churn-server-2 churn-server-3 lc3-be-server-2; do
    n=${set##*-}
    other=$n
    if [ "$harm" = foreign-bundle ]; then other=$((n == 2 ? 1 : 2)); fi
    evaluate "$n" "$set" "$out/harm/$harm/$set" "$other" "$harmed" --seeds 5 --harm "$harm"
  done
done

shopt -s nullglob
"$(dirname "$python")/surefoot" eval-report "$out"/eval/* "$out"/harm/*/* --out "$out/report" --overwrite
