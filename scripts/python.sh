#!/usr/bin/env bash
# Makes the Python environment in $1 from a lock file (hashes checked); with requirements-spark.lock the one that drives Spark, or adds
# that to an environment that is there.
set -euo pipefail
venv=${1:?usage: scripts/python.sh DIR [LOCK]}
lock=${2:-requirements.lock}

fail() { printf 'surefoot: %s\n' "$1" >&2; exit 1; }

python=""
for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
  if [ -z "$candidate" ] || ! command -v "$candidate" >/dev/null; then continue; fi
  if "$candidate" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || fail "no Python 3.11 to 3.13. Install python3 and python3-venv, or set PYTHON=/path/to/python3."

if [ ! -x "$venv/bin/python" ]; then
  if ! "$python" -m venv "$venv" 2>/dev/null; then
    rm -rf "$venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      "$(dirname "$0")"/install-packages.sh "make" python3-venv
      "$python" -m venv "$venv"
    else
      fail "this Python cannot make environments. Install python3-venv."
    fi
  fi
fi
echo "surefoot: installing the Python packages of $lock into $venv (the README says what PyTorch costs)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$lock"
if [ "$lock" != requirements.lock ]; then exit 0; fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
# The lock leaves out the GPU libraries that PyTorch's wheel links against; a CPU never calls them.
"$venv/bin/python" -m pipelines.cpu_torch
