#!/usr/bin/env bash
# All policies side by side: committed sets and drawn test worlds, one seed each, and the page with frontiers, distributions,
# intervals and ranks (docs/rivals.md, "The bench").
#
#   scripts/bench/policies.sh [FOLDER]     default out/bench-policies; resumes: what is there is not done again
#
# MODELS: a folder of trained models that fit any server (`surefoot bundle worlds --models`). Without it policies that ask models are left out, and that is said.
# WORLDS: test worlds that are drawn (test:111..120). SEEDS (1), POLICIES, SETS and SECONDS are for other sizes; THREADS (2).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-out/bench-policies}
python=${PYTHON:-.venv/bin/python}
surefoot=$(dirname "$python")/surefoot
SUREFOOTD=$(realpath "${SUREFOOTD:-target/release/surefootd}")
export SUREFOOTD
seeds=${SEEDS:-1} worlds=${WORLDS:-test:111..120} threads=${THREADS:-2}
sets=${SETS:-lc2-be-server-2 lc3-be-server-2 lc4-be-server-2 lc5-be-server-2 lc6-be-server-2 churn-server-1 churn-server-2 churn-server-3}
without=unmanaged,equal-share,heracles,be-suppress,parties,parties-keep,parties-be,parties-stop,clite,olpart
with=osml-plus-literal,osml-plus,surefoot
policies=${POLICIES:-$without${MODELS:+,$with}}
mkdir -p "$out"
begin=$SECONDS

if [ -n "${MODELS:-}" ]; then
  for n in 1 2 3; do
    [ -e "$out/bundles/server-$n.tar" ] ||
      "$surefoot" bundle worlds --models "$MODELS" --platform "server-$n" --out "$out/bundles" >>"$out/bundles.log" 2>&1
  done
  [ -d "$out/bundles-worlds" ] ||
    "$surefoot" bundle worlds --models "$MODELS" --platform "$worlds" --out "$out/bundles-worlds" >>"$out/bundles.log" 2>&1
else
  printf 'bench-policies: MODELS is not given: %s are left out. Train some (docs/worlds.md, "A bundle for a server without data")\n' "$with" >&2
fi

evaluate() { # NAME OPTION...
  local to=$out/eval/$1
  shift
  "$SUREFOOTD" eval --policies "$policies" --seeds "$seeds" --threads "$threads" --timelines none --progress none --out "$to" "$@" >"$to.log" 2>&1 || {
    cat "$to.log" >&2
    return 1
  }
  printf 'bench-policies: %s after %d s\n' "$to" $((SECONDS - begin)) >&2
}

mkdir -p "$out/eval"
for set in $sets; do
  n=${set##*-}
  evaluate "$set" --workloads "workloads/sets/$set" --platform "server-$n" ${MODELS:+--bundle "$out/bundles/server-$n.tar"}
done
evaluate worlds --worlds "$worlds" ${MODELS:+--bundles "$out/bundles-worlds"}

shopt -s nullglob
reports=("$out"/eval/*/)
"$surefoot" eval-report "${reports[@]%/}" --out "$out/report" --overwrite
printf 'bench-policies: %s/report/eval-report.html after %d s\n' "$out" $((SECONDS - begin)) >&2
