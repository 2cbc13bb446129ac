#!/usr/bin/env bash
# image-lab.sh - surefoot/lab (the toolkit) and surefoot/lab-database (PostgreSQL for its tracking server), and a look whether they work.
#   scripts/dist/image-lab.sh [BASE]     BASE: image that it is made from (Debian or Ubuntu with Python 3.11 to 3.13); debian:bookworm-slim
# The binaries are those of dist/ (make dist), or of target/release where they start in the image.
# SUREFOOT_CA_BUNDLE   certificates for the downloads inside (this machine's, so that a company's proxy is trusted there, too)
set -euo pipefail
cd "$(dirname "$0")/../.."

base=${1:-debian:bookworm-slim}
state=${SUREFOOT_STATE:-.surefoot}
engine=${SUREFOOT_ENGINE:-$(command -v docker || command -v podman)}
certificates=${SUREFOOT_CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
die() { printf 'image-lab: %s\n' "$1" >&2; exit 1; }

[ -r "$certificates" ] || die "$certificates cannot be read. Install ca-certificates, or name others in SUREFOOT_CA_BUNDLE"
mkdir -p "$state"
scripts/images.sh --base

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir -p "$context/bin" "$context/repository"
if [ -e "dist/surefootd-$version-x86_64.tar.gz" ]; then
  tar -C "$context" --strip-components=1 -xzf "dist/surefootd-$version-x86_64.tar.gz" --wildcards '*/bin/*'
else
  cp target/release/surefootd target/release/surefoot-loadgen "$context/bin/" || die "no binaries. Run: make rust (or make dist)"
fi
# What git knows of, as it lies here: neither data nor environments.
git ls-files -z | tar --null --files-from=- --create | tar -C "$context/repository" --extract
cp "$certificates" "$context/certificates.pem"
cp packaging/lab/Dockerfile "$context/"

proxies=()
for v in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do [ -z "${!v:-}" ] || proxies+=(--build-arg "$v"); done
# shellcheck source=scripts/dist/labels.sh
source scripts/dist/labels.sh
build() { # TAG FOLDER TITLE [OPTION...]
  local tag=$1 folder=$2 title=$3 log=$state/image-${1##*/}.log
  shift 3
  oci_labels "$title"
  printf 'image-lab: building %s (all it says: %s)\n' "$tag" "$log"
  "$engine" build --network host "${proxies[@]}" "${labels[@]}" "$@" -t "$tag" "$folder" >"$log" 2>&1 \
    || { tail -n 10 "$log" >&2; die "building $tag failed; see $log"; }
}
build surefoot/lab-database packaging/lab/database "surefoot lab database"
build surefoot/lab "$context" "surefoot lab" --build-arg "BASE=$base"

"$engine" run --rm --network none surefoot/lab surefootd --version
"$engine" run --rm --network none surefoot/lab surefoot --version
"$engine" run --rm --network none surefoot/lab python -c 'import dvc, lightning, mlflow, psycopg2, torch; print("PyTorch", torch.__version__)'
printf 'image-lab: surefoot/lab, %s bytes\n' "$("$engine" image inspect -f '{{.Size}}' surefoot/lab)"
