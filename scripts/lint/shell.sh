#!/usr/bin/env bash
# Syntax of every shell script, and shellcheck where it is installed.
set -euo pipefail
mapfile -t files < <(git ls-files '*.sh' .ci/run)
for file in "${files[@]}"; do bash -n "$file"; done
if command -v shellcheck >/dev/null; then
  shellcheck "${files[@]}"
else
  echo "lint: shellcheck is not installed, only the syntax of ${#files[@]} shell scripts was checked"
fi
