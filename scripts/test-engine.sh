#!/usr/bin/env bash
# Tests that control real containers. Without an engine they cannot run: CI fails then, a user is told.
set -euo pipefail
if ! scripts/engine.sh || ! scripts/images.sh; then
  echo "surefoot: NOT RUN: the tests on real containers (see the lines above for what is missing)" >&2
  if [ "${CI:-}" = true ] || [ "${SUREFOOT_REQUIRE_ENGINE:-}" = 1 ]; then exit 1; fi
  exit 0
fi
cargo test --release --locked -p surefoot-linux -- --ignored --test-threads=1
