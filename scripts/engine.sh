#!/usr/bin/env bash
# Make a Docker-compatible engine answer: find it, install it where that is possible, start it if it is not running.
#
#   scripts/engine.sh [start]   start what is missing; says which engine answers
#   scripts/engine.sh status    changes nothing; exit code 1 where no engine answers
#   scripts/engine.sh stop      stop the daemon that this script started
#
# SUREFOOT_ENGINE  command to use (docker, podman or a path); default: docker, else podman
# SUREFOOT_STATE   folder for the daemon's log and process id; default: .surefoot in this repository
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state=${SUREFOOT_STATE:-$repo/.surefoot}
log=$state/engine.log
pid_file=$state/engine.pid
wait_s=60

say() { printf 'engine: %s\n' "$*"; }
die() { printf 'engine: %s\n' "$*" >&2; exit 1; }

find_engine() {
    if [[ -n ${SUREFOOT_ENGINE:-} ]]; then
        command -v "$SUREFOOT_ENGINE" || die "SUREFOOT_ENGINE=$SUREFOOT_ENGINE is not a command. Give docker, podman or a path"
    else
        command -v docker || command -v podman || true
    fi
}

answers() { [[ -n $engine ]] && timeout 10 "$engine" info >/dev/null 2>&1; }

describe() {
    local version
    version=$("$engine" version --format '{{.Server.Version}}' 2>/dev/null || "$engine" --version)
    say "$(basename "$engine") $version answers"
}

install_docker() {
    [[ $(id -u) == 0 ]] || die "no container engine. Install it: sudo apt-get install docker.io (or podman), then run this again"
    command -v apt-get >/dev/null || die "no container engine, and no apt-get to install one with. Install Docker or Podman"
    mkdir -p "$state"
    say "installing docker.io from Debian's packages"
    # invoke-rc.d must not start it behind our back: this script does, with options that fit the machine.
    RUNLEVEL=1 "$repo/scripts/install-packages.sh" "this" docker.io iptables \
        >"$state/engine-install.log" 2>&1 || { tail -n 5 "$state/engine-install.log" >&2; die "installing docker.io failed; see $state/engine-install.log"; }
}

# Start dockerd with the given options; succeeds once it answers, fails once it has died or time is up.
try_dockerd() {
    rm -f /var/run/docker.pid
    printf '\n== dockerd %s\n' "$*" >>"$log"
    setsid dockerd "$@" >>"$log" 2>&1 </dev/null 9>&- &
    local pid=$! end=$((SECONDS + wait_s))
    while ((SECONDS < end)); do
        if answers; then
            echo "$pid" >"$pid_file"
            say "started dockerd $* (log: ${log#"$repo"/})"
            return 0
        fi
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.2
    done
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    return 1
}

# A client alone is not enough; a daemon elsewhere (DOCKER_HOST) is.
start() {
    if answers; then describe; return; fi
    if [[ -z $engine ]] || { [[ $(basename "$engine") == docker ]] && [[ -z ${DOCKER_HOST:-} ]] && ! command -v dockerd >/dev/null; }; then
        install_docker
        engine=$(find_engine)
    fi
    if answers; then describe; return; fi
    [[ $(basename "$engine") == docker ]] || die "$engine does not answer: $("$engine" info 2>&1 | tail -n 1)"
    [[ -z ${DOCKER_HOST:-} ]] || die "nothing answers at DOCKER_HOST=$DOCKER_HOST. Start that daemon, or unset DOCKER_HOST"
    [[ $(id -u) == 0 ]] || die "the Docker daemon is not running, or you may not speak to it. Run: sudo systemctl start docker; sudo usermod -aG docker $(id -un)"
    mkdir -p "$state"
    exec 9>"$state/engine.lock"
    flock -w 180 9 || die "another start of the engine has held $state/engine.lock for 3 minutes"
    if answers; then describe; return; fi
    if [[ -d /run/systemd/system ]] && systemctl start docker 2>>"$log" && answers; then describe; return; fi
    : >"$log"
    # From the normal case to sandboxes without netfilter or overlayfs. Images are built on the host's network, so no bridge is needed.
    try_dockerd \
        || try_dockerd --iptables=false --bridge=none \
        || try_dockerd --storage-driver=vfs \
        || try_dockerd --storage-driver=vfs --iptables=false --bridge=none \
        || { grep -hE 'level=(error|fatal)|failed to start' "$log" | tail -n 3 >&2; die "dockerd does not start on this machine; see $log"; }
    describe
}

stop() {
    [[ -f $pid_file ]] || die "no daemon was started by this script ($pid_file is missing)"
    local pid
    pid=$(<"$pid_file")
    if [[ $(cat "/proc/$pid/comm" 2>/dev/null) == dockerd ]]; then kill "$pid"; fi
    rm -f "$pid_file"
    say "stopped"
}

engine=$(find_engine)
case ${1:-start} in
    start) start ;;
    status) if answers; then describe; else die "no container engine answers. Run: scripts/engine.sh start"; fi ;;
    stop) stop ;;
    *) printf 'usage: %s [start|status|stop]\n' "$0" >&2; exit 2 ;;
esac
