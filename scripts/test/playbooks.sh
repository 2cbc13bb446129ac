#!/usr/bin/env bash
# Playbooks and campaigns on hosts: lint, then three containers with a real sshd (tests/trial_playbooks.py).
#   scripts/test/playbooks.sh [SECONDS]    how long a connection is cut
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=${SUREFOOT_ENGINE:-$(command -v docker || command -v podman)}

(cd playbooks && ansible-lint --offline --profile production .)
scripts/images.sh --base
"$engine" build -q --network host -t surefoot/target tests/targets >/dev/null
SUREFOOT_TRIAL_CUT_S=${1:-10} python -m pytest tests/trial_playbooks.py
