#!/usr/bin/env bash
# kernel-package.sh KERNEL [FOLDER] - the newest package of Debian 12's kernel 6.1 or 6.12 that apt knows; one that is in FOLDER already
# (scripts/vm/kernel-vm-deps.sh) is good enough: what Debian has made newer since is no reason to fetch.
set -euo pipefail
fail() { printf 'surefoot: %s\n' "$1" >&2; exit 1; }
case ${1:-} in
  6.1) pattern='^linux-image-6\.1\.0-[0-9]+-amd64$' ;;
  # bookworm-backports and bookworm-security.
  6.12) pattern='^linux-image-6\.12\.[0-9+a-z]*deb12-amd64(-unsigned)?$' ;;
  *) fail "no kernel \"${1:-}\". There are: 6.1, 6.12. Another package of Debian's is named by SUREFOOT_KERNEL" ;;
esac
if [ -n "${2:-}" ] && [ -s "$2/package" ]; then exec cat "$2/package"; fi
command -v apt-cache >/dev/null || fail "no apt. Kernels come from Debian's packages: run this on Debian 12."
newest() { apt-cache search --names-only "$pattern" | cut -d ' ' -f 1 | sort -V | tail -n 1; }
package=$(newest)
if [ -z "$package" ] && [ "$(id -u)" = 0 ]; then
  apt-get update -q >&2
  package=$(newest)
fi
[ -n "$package" ] || fail "apt knows no kernel $1 of Debian 12. Add bookworm-backports to its sources, or name a package in SUREFOOT_KERNEL."
echo "$package"
