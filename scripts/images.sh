#!/usr/bin/env bash
# Build the workloads' container images: surefoot/<name> from workloads/<name>/Dockerfile.
#
#   scripts/images.sh NAME...     these; a name of the catalogue, e.g. memcached
#   scripts/images.sh --all       every folder of workloads/ with a Dockerfile
#   scripts/images.sh             what the tests and the demo need: memcached nginx redis stream
#   scripts/images.sh --base      the base image only
#
# An image whose content label fits the folder is left alone. What is made of surefoot/toolchain has it built first. The base image
# is pulled; where no registry can be reached it is made from Debian's packages (mmdebstrap), under the same name.
# SUREFOOT_ENGINE  docker, podman or a path
# SUREFOOT_PULL    0 = do not try a registry for the base image
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state=${SUREFOOT_STATE:-$repo/.surefoot}
engine=${SUREFOOT_ENGINE:-$(command -v docker || command -v podman || true)}
base=debian:bookworm-slim
# shellcheck source=scripts/dist/labels.sh
source "$repo/scripts/dist/labels.sh"

say() { printf 'images: %s\n' "$*"; }
die() { printf 'images: %s\n' "$*" >&2; exit 1; }

if [[ -z $engine ]] || ! "$engine" info >/dev/null 2>&1; then
  die "no container engine answers. Run: scripts/engine.sh start"
fi
mkdir -p "$state"

make_base() {
    say "making $base from Debian's packages (about a minute)"
    local tar=$state/base.part.tar
    "$repo/scripts/debian-root.sh" "$tar" >"$state/base.log" 2>&1 \
        || { tail -n 5 "$state/base.log" >&2; rm -f "$tar"; die "$base can neither be pulled nor made; see $state/base.log"; }
    "$engine" import --change 'CMD ["bash"]' --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' "$tar" "$base" >/dev/null
    rm -f "$tar"
}

ensure_base() {
    "$engine" image inspect "$base" >/dev/null 2>&1 && return
    if [[ ${SUREFOOT_PULL:-1} != 0 ]] && timeout 90 "$engine" pull -q "$base" >"$state/pull.log" 2>&1; then return; fi
    make_base
}

# What of an image's entry says that it is a service: the entry of its name, or one that shares it.
is_service() { grep -l "^image = \"surefoot/$1\"$" "$repo"/workloads/*/workload.toml | xargs -r grep -q '^port = '; }

# For whoever runs an image by hand: a service is well while one of its processes listens, a job while it runs. surefootd starts its
# containers with --no-healthcheck: nothing runs beside what is measured.
health() {
    local runs='kill -0 1'
    # shellcheck disable=SC2016
    local listens='for f in /proc/[0-9]*/fd/*; do s=$(readlink "$f" 2>/dev/null) || continue; case $s in socket:*) grep -qE " 0A .* ${s//[^0-9]/} " /proc/net/tcp /proc/net/tcp6 2>/dev/null && exit 0;; esac; done; exit 1'
    [[ $1 != toolchain ]] || return 0
    if is_service "$1"; then runs=$listens; fi
    printf '\nHEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["bash", "-c", "%s"]\n' "${runs//\"/\\\"}"
}

# What the image is made of: the folder's files (the catalogue entry is none of them), its health check and the images that it is made from.
content() {
    { (cd "$1" && find . -type f ! -name workload.toml -print0 | sort -z | xargs -0 sha256sum)
      health "$(basename "$1")"
      local from
      while IFS= read -r from; do "$engine" image inspect -f '{{.Id}}' "$from"; done < <(made_from "$1"); } | sha256sum | cut -c1-16
}

made_from() { awk '$1 == "FROM" { print $2 }' "$1/Dockerfile" | sort -u; }

build() {
    local name=$1 dir=$repo/workloads/$1 want have args=() v
    # Several entries may share one image.
    [[ -f $dir/Dockerfile ]] || { name=$(image_of "$dir/workload.toml"); dir=$repo/workloads/$name; }
    [[ -f $dir/Dockerfile ]] || die "no workloads/$1/Dockerfile. Known: $(known | tr '\n' ' ')"
    ! made_from "$dir" | grep -q '^surefoot/toolchain$' || build toolchain
    want=$(content "$dir")
    have=$("$engine" image inspect -f '{{index .Config.Labels "surefoot.content"}}' "surefoot/$name" 2>/dev/null || true)
    if [[ $want == "$have" ]]; then
        say "surefoot/$name is up to date"
        return
    fi
    say "building surefoot/$name"
    for v in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do [[ -z ${!v:-} ]] || args+=(--build-arg "$v"); done
    # Labels make another image: what is built from the toolchain would be built anew with each commit.
    labels=()
    [[ $name == toolchain ]] || oci_labels "surefoot $name" "$(licence "$name")"
    # The host's network: package downloads work also where the engine has no bridge.
    { cat "$dir/Dockerfile"; health "$name"; } | "$engine" build --network host --label "surefoot.content=$want" "${labels[@]}" "${args[@]}" \
        -t "surefoot/$name" -f - "$dir" >"$state/image-$name.log" 2>&1 \
        || { tail -n 10 "$state/image-$name.log" >&2; die "building surefoot/$name failed; see $state/image-$name.log"; }
}

image_of() { [[ ! -f $1 ]] || sed -n 's|^image = "surefoot/\(.*\)"$|\1|p' "$1"; }

# Of what is in the image: that of the entry of its name.
licence() { sed -n 's/^licence = "\([^"]*\)".*/\1/p' "$repo/workloads/$1/workload.toml" 2>/dev/null | head -n 1; }

known() { (cd "$repo/workloads" && for d in */Dockerfile; do dirname "$d"; done); }

names=("$@")
[[ ${#names[@]} -gt 0 ]] || names=(memcached nginx redis stream)
ensure_base
[[ ${names[0]} != --base ]] || exit 0
[[ ${names[0]} != --all ]] || mapfile -t names < <(known)
for name in "${names[@]}"; do build "$name"; done
