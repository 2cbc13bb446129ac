#!/usr/bin/env bash
# A minimal Debian 12 root, made by mmdebstrap from this machine's own mirror where that is one of Debian 12.
#   scripts/debian-root.sh OUT [MMDEBSTRAP-OPTION...]     OUT: a folder or FILE.tar; as root for a folder
set -euo pipefail
out=$1
shift

if ! command -v mmdebstrap >/dev/null; then "$(dirname "$0")"/install-packages.sh "it" mmdebstrap; fi

options=()
# Options of this machine's apt that must be kept (a mirror frozen in time, for instance).
while IFS= read -r line; do options+=("--aptopt=$line"); done < <(
  apt-config dump 2>/dev/null | grep -E '^Acquire::(Check-Valid-Until|Check-Date|http::Proxy|https::Proxy) ' | grep -v '""' || true
)
sources=()
# On a Debian 12 host its own mirror is nearest.
if grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release && [ -s /etc/apt/sources.list.d/debian.sources ]; then
  sources=(/etc/apt/sources.list.d/debian.sources)
fi
mmdebstrap --variant=minbase "${options[@]}" --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' "$@" bookworm "$out" "${sources[@]}"
