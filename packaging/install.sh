#!/usr/bin/env bash
# Install Surefoot's node side from the unpacked archive, or remove it: install.sh [--remove|--purge] [--root DIR]
#
# --remove takes away what was installed and leaves configuration and state; --purge takes those and the user away too.
set -euo pipefail
cd "$(dirname "$0")"

action=install
root=
while [ $# -gt 0 ]; do
  case $1 in
    --remove | --purge) action=${1#--} ;;
    --root) root=${2:?--root needs a folder}; shift ;;
    *) echo "usage: install.sh [--remove|--purge] [--root DIR]" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$root" ] || [ "$(id -u)" = 0 ] || { echo "install.sh: run it as root" >&2; exit 1; }

units=/usr/lib/systemd/system
# Where each file goes, and its mode. Configuration is last: it is never overwritten.
place() {
  cat <<LIST
bin/surefootd /usr/bin/surefootd 755
bin/surefoot-loadgen /usr/bin/surefoot-loadgen 755
systemd/surefootd.service $units/surefootd.service 644
systemd/surefootd-actuator.service $units/surefootd-actuator.service 644
systemd/surefoot.sysusers /usr/lib/sysusers.d/surefoot.conf 644
systemd/surefoot.tmpfiles /usr/lib/tmpfiles.d/surefoot.conf 644
completions/bash /usr/share/bash-completion/completions/surefootd 644
completions/zsh /usr/share/zsh/vendor-completions/_surefootd 644
completions/fish /usr/share/fish/vendor_completions.d/surefootd.fish 644
LIST
  find man -type f | sort | sed 's#^man/\(.*\)#man/\1 /usr/share/man/man1/\1 644#'
  find doc -type f | sort | sed 's#^doc/\(.*\)#doc/\1 /usr/share/doc/surefoot/\1 644#'
  find share -type f | sort | sed 's#^share/\(.*\)#share/\1 /usr/share/surefoot/\1 644#'
}
# Nothing of the host is touched where another root is given.
host() { [ -n "$root" ] || "$@"; }
systemd() { [ ! -d /run/systemd/system ] || systemctl "$@"; }

case $action in
  install)
    while read -r from to mode; do install -D -m "$mode" "$from" "$root$to"; done < <(place)
    for file in node.toml surefootd.env; do
      [ -e "$root/etc/surefoot/$file" ] || install -D -m 644 "etc/$file" "$root/etc/surefoot/$file"
    done
    install -d -m 755 "$root/etc/surefoot/keys/trusted"
    if ! host getent passwd surefoot >/dev/null; then
      host useradd --system --home-dir /var/lib/surefoot --no-create-home --shell /usr/sbin/nologin surefoot
    fi
    # The folder of locks: the daemon's unit can only write it where it is there. Without systemd the first controller makes it.
    [ ! -d /run/systemd/system ] || host systemd-tmpfiles --create surefoot.conf
    host systemd daemon-reload
    echo "installed; next: surefootd check, edit /etc/surefoot/node.toml, systemctl enable --now surefootd"
    ;;
  remove | purge)
    # Stopping gives everything back to the kernel; the actuator goes last.
    host systemd disable --now surefootd.service surefootd-actuator.service || true
    while read -r _ to _; do rm -f "$root$to"; done < <(place)
    # Folders that are empty now: those of ours, and of systemd's where there was none.
    while read -r _ to _; do dirname "$root$to"; done < <(place) | sort -u | while IFS= read -r folder; do
      [ ! -d "$folder" ] || rmdir -p --ignore-fail-on-non-empty "$folder"
    done
    host rm -rf /run/lock/surefoot
    if [ "$action" = purge ]; then
      rm -rf "$root/etc/surefoot" "$root/var/lib/surefoot" "$root/var/lib/surefoot-actuator"
      if host getent passwd surefoot >/dev/null; then host userdel surefoot; fi
    fi
    host systemd daemon-reload
    ;;
esac
