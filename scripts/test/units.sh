#!/usr/bin/env bash
# units.sh [MAX] - systemd's own verdict on the units: they are valid, and their exposure is at most MAX tenths (default 20).
set -euo pipefail
cd "$(dirname "$0")/../.."

max=${1:-20}
if ! command -v systemd-analyze >/dev/null; then
  echo "test-units: systemd-analyze is missing; install the package systemd (it need not be the init here)" >&2
  exit 1
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/usr/lib/systemd/system" "$root/usr/bin"
cp packaging/systemd/*.service "$root/usr/lib/systemd/system/"
# Only that there is such a command is looked at.
install -m 755 /bin/true "$root/usr/bin/surefootd"
# What the units name of others.
for unit in /usr/lib/systemd/system/{sysinit,basic,shutdown,network,multi-user}.target /usr/lib/systemd/system/{system.slice,-.slice}; do
  [ ! -e "$unit" ] || cp "$unit" "$root/usr/lib/systemd/system/"
done

bad=0
for unit in surefootd.service surefootd-actuator.service; do
  # Of our own units every remark counts.
  if remarks=$(systemd-analyze verify --man=no --root="$root" "$unit" 2>&1 | grep -F surefoot); then
    printf 'test-units: %s\n' "$remarks" >&2
    bad=1
  fi
  # security's exit code says whether the threshold was kept.
  if report=$(systemd-analyze security --offline=true --root="$root" --threshold="$max" --no-pager "$unit" 2>&1); then
    grep -F 'Overall exposure' <<<"$report"
  else
    printf '%s\n' "$report" >&2
    echo "test-units: $unit: exposure above $max tenths" >&2
    bad=1
  fi
done
exit "$bad"
