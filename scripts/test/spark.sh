#!/usr/bin/env bash
# The stages `label` and `rows` on a Spark of this machine (tests/trial_spark.py), in an environment of their own: .venv-spark.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { printf 'surefoot: %s\n' "$1" >&2; exit 1; }

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
if [ -z "${JAVA_HOME:-}" ] && ! command -v java >/dev/null; then scripts/install-packages.sh "make test-spark" default-jre-headless; fi
version=$("$java" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p') || true
[ "${version:-0}" -ge 17 ] || fail "$java is version ${version:-unknown}; Spark 4 needs a JRE 17 or newer. Install one and set JAVA_HOME."

if [ ! -e .venv-spark/.ready ] || [ requirements-spark.lock -nt .venv-spark/.ready ]; then
  scripts/python.sh .venv-spark requirements-spark.lock
  touch .venv-spark/.ready
fi
.venv-spark/bin/python -m pytest -p no:cacheprovider -s tests/trial_spark.py
