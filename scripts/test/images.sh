#!/usr/bin/env bash
# images.sh - images of a service, of one that forks and of a job: labelled, healthy while they serve, and not while they do not.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=${SUREFOOT_ENGINE:-$(command -v docker || command -v podman)}
port=21897
name=surefoot-test-images-$$
trap '"$engine" rm --force "$name" >/dev/null 2>&1 || true' EXIT
die() { printf 'test-images: %s\n' "$1" >&2; exit 1; }

# What its health becomes: the first that is not "starting".
health() { # IMAGE COMMAND...
  local image=$1 state=starting
  shift
  "$engine" run --detach --name "$name" --network host --health-interval=1s --health-start-period=1s --health-retries=2 "$image" "$@" >/dev/null
  for _ in $(seq 100); do
    state=$("$engine" inspect -f '{{.State.Health.Status}}' "$name")
    [ "$state" = starting ] || break
    sleep 0.3
  done
  "$engine" rm --force "$name" >/dev/null
  printf '%s\n' "$state"
}
expect() { # STATE IMAGE COMMAND...
  local want=$1 got
  shift
  got=$(health "$@")
  [ "$got" = "$want" ] || die "$*: $got, not $want"
}

expect healthy surefoot/memcached memcached -l 127.0.0.1 -p "$port"
expect unhealthy surefoot/memcached sleep 600
expect healthy surefoot/nginx serve "$port" 1
expect healthy surefoot/stream stream 1
for image in memcached nginx redis stream; do
  for label in title version revision vendor licenses; do
    text=$("$engine" image inspect -f "{{index .Config.Labels \"org.opencontainers.image.$label\"}}" "surefoot/$image")
    [ -n "$text" ] || die "surefoot/$image has no label org.opencontainers.image.$label"
  done
done
echo "test-images: labels and health checks hold"
