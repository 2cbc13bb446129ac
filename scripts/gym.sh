#!/usr/bin/env bash
# Builds the extension module of python/ and installs the package into the environment $1, editable: Python is read from this checkout.
set -euo pipefail
venv=${1:?usage: scripts/gym.sh DIR}
cd "$(dirname "$0")/.."
python=$(cd "$venv/bin" && pwd)/python
export CARGO_TARGET_DIR=$PWD/target
# maturin is in that environment, and pip calls it by its name.
PATH=$(dirname "$python"):$PATH "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e python
