#!/usr/bin/env bash
# prometheus.sh - prints the folder that has prometheus and promtool: of the PATH, else Debian's package unpacked below .surefoot (19 MB, once).
# Nothing is installed: the package would start a service.
set -euo pipefail
cd "$(dirname "$0")/../.."

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
  dirname "$(command -v promtool)"
  exit
fi
root=$PWD/.surefoot/prometheus
if [ ! -x "$root/promtool" ]; then
  command -v apt-get >/dev/null || { echo "prometheus: neither prometheus and promtool nor apt-get is here" >&2; exit 1; }
  new=$(mktemp -d)
  trap 'rm -rf "$new"' EXIT
  # As another user than root apt cannot drop rights for the download; it says so and goes on.
  if ! (cd "$new" && apt-get download -q prometheus >&2); then
    # A bare machine has no lists of packages yet.
    [ "$(id -u)" = 0 ] && apt-get update -q >&2
    (cd "$new" && apt-get download -q prometheus >&2)
  fi
  mkdir "$new/root"
  dpkg-deb --extract "$new"/prometheus_*.deb "$new/root"
  mkdir -p "$(dirname "$root")"
  rm -rf "$root"
  # Whole or not there: two tests may come at once.
  mv -T "$new/root/usr/bin" "$root" 2>/dev/null || [ -x "$root/promtool" ]
fi
printf '%s\n' "$root"
