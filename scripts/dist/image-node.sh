#!/usr/bin/env bash
# image-node.sh - surefoot/node:VERSION from dist/ (make dist first), and a look whether it works.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
archive=dist/surefootd-$version-x86_64.tar.gz
engine=${SUREFOOT_ENGINE:-$(command -v docker || command -v podman)}
[ -e "$archive" ] || { echo "image-node: $archive is missing. Run: make dist" >&2; exit 1; }

# The base image: pulled, or made here where no registry can be reached.
scripts/images.sh --base
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
tar -C "$context" --strip-components=1 -xzf "$archive"
cp packaging/image/Dockerfile "$context/"
mv "$context"/bin/* "$context/"
"$engine" build --quiet --network none -t "surefoot/node:$version" -t surefoot/node:latest "$context" >/dev/null
"$engine" run --rm --network none "surefoot/node:$version" --version
# Unprivileged, with nothing mounted: it says what it lacks, and a virtual server needs nothing.
"$engine" run --rm --network none "surefoot/node:$version" check --json >"$context/check.json"
python3 -c 'import json,sys; c = json.load(open(sys.argv[1])); print("image-node: check: valid JSON,", len(str(c)), "characters")' "$context/check.json"
"$engine" run --rm --network none --read-only --tmpfs /tmp -v "$PWD/workloads/sets/demo/three-lc-arrivals.toml:/sets/demo.toml:ro" \
  "surefoot/node:$version" eval --workloads /sets --policies unmanaged,parties-be --platform server-1 --out /tmp/eval --json >"$context/eval.json"
python3 -m json.tool "$context/eval.json" >/dev/null
echo "image-node: eval on a virtual server works"
printf 'image-node: surefoot/node:%s, %s bytes\n' "$version" "$("$engine" image inspect -f '{{.Size}}' "surefoot/node:$version")"
