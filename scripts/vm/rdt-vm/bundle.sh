#!/usr/bin/env bash
# The bundle that policies with models are tried with on the guest (scheduler/linux/tests/rdt/models.rs), from nothing: samples of a virtual
# server like the guest, measured as the guest would (no counters, quotas in tenths of a core), a small training, a signature with the test key.
# A minute. After make python rust:
#   scripts/vm/rdt-vm/bundle.sh tests/vectors/bundle-rdt-guest
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
lab=$PWD/scripts/vm/rdt-vm/lab
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SUREFOOT_PROFILES=$lab MLFLOW_TRACKING_URI=sqlite:///$work/mlflow.db
surefoot campaign run "$lab/campaign.toml" --out "$work/data"
PYTHONPATH=. python scripts/vm/rdt-vm/as_guest.py "$work/data/rdt-guest" "$work/guest"
python -m pipelines.label --data "$work/guest" --out "$work/label" --params "$lab/params.yaml"
python -m pipelines.rows --data "$work/guest" --labels "$work/label" --out "$work/rows" --params "$lab/params.yaml"
for model in a b c; do
  of_b=()
  [ "$model" != c ] || of_b=(--b "$work/train/b")
  python -m pipelines.train --model "$model" --name rdt-guest --rows "$work/rows" --labels "$work/label" --params "$lab/params.yaml" \
    ${of_b[@]+"${of_b[@]}"} --out "$work/train/$model"
done
# A checkout's files may be read by others, which a signing key must not.
install -m 600 tests/vectors/keys/TEST-ONLY-signing.pem "$work/key.pem"
python -m pipelines.artefact.bundle --data "$work/guest" --models "$work/train" --key "$work/key.pem" --out "$out" --overwrite
