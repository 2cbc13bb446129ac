#!/usr/bin/env bash
# Tests that control real containers. Without an engine they cannot run: CI fails then, a user is told.
#   scripts/test/engine.sh [WORDS]    ends with WORDS if they ran and passed, else with a line that starts with NOT RUN or FAILED
set -euo pipefail
done_words=${1:-"make test-engine: done"}
if ! scripts/engine.sh || ! scripts/images.sh; then
  echo "NOT RUN: the tests on real containers (see the lines above for what is missing)"
  if [ "${CI:-}" = true ] || [ "${SUREFOOT_REQUIRE_ENGINE:-}" = 1 ]; then exit 1; fi
  exit 0
fi
# The whole workspace's features, as in the other suites: other ones would build every dependency anew.
read -ra bpf <<<"$(scripts/bpf-flags.sh)"
if ! cargo test --release --locked --workspace "${bpf[@]}" --test engine -- --ignored --test-threads=1; then
  echo "FAILED: the tests on real containers"
  exit 1
fi
scripts/test/images.sh || { echo "FAILED: labels and health checks of images"; exit 1; }
echo "$done_words"
