#!/usr/bin/env bash
# docs/install-node.md followed on fresh Debian containers (tests/trial_kit.py), with the packages that lie in dist/ (make dist).
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=${SUREFOOT_ENGINE:-$(command -v docker || command -v podman)}

scripts/images.sh --base
"$engine" build -q --network host -t surefoot/server tests/targets/server >/dev/null
python -m pytest -p no:cacheprovider -s tests/trial_kit.py
