#!/usr/bin/env bash
# install-packages.sh NEXT PACKAGE... - Debian's or Ubuntu's packages, as root; any other user is told what to install before NEXT.
set -euo pipefail
next=$1
shift
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "surefoot: missing: $*. Install them, e.g. 'sudo apt-get install $*', then run $next again." >&2
  exit 1
fi
echo "surefoot: installing $*"
export DEBIAN_FRONTEND=noninteractive
# One at a time: apt fails where another holds its lists. Closed for what it starts, which may be a daemon that stays.
alone=(flock --close /var/lib/dpkg/surefoot.lock)
"${alone[@]}" apt-get update -q
"${alone[@]}" apt-get install -y -q --no-install-recommends "$@"
