#!/usr/bin/env bash
# Build what campaigns on the originals need, from your own copy of them (docs/workloads.md#originals).
#
#   scripts/originals.sh tailbench SOURCE   image surefoot/tailbench (masstree, silo), and their load generators
#   scripts/originals.sh parsec SOURCE      image surefoot/parsec (blackscholes, canneal, streamcluster)
#   scripts/originals.sh mutilate SOURCE    the load generator
#   scripts/originals.sh memtier SOURCE     the load generator memtier_benchmark
#   scripts/originals.sh wrk2 SOURCE        the load generator
#   scripts/originals.sh adapters           what reads the output of programs that do not tell the feed themselves, for other hosts
#
# SOURCE is a tar archive or a folder of the program's sources. It is copied, the copy is changed as workloads/originals/build/TOOL/mends
# says, and built in a container. Load generators run on the host, with the libraries that they were built with: they are put in
# workloads/originals/built, which git ignores and a campaign ships with the catalogue.
# SUREFOOT_ENGINE  docker, podman or a path
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state=${SUREFOOT_STATE:-$repo/.surefoot}
engine=${SUREFOOT_ENGINE:-$(command -v docker || command -v podman || true)}
originals=$repo/workloads/originals
built=$originals/built

say() { printf 'originals: %s\n' "$*"; }
die() { printf 'originals: %s\n' "$*" >&2; exit "${code:-1}"; }
bad() { code=2 die "$@"; }

# A file that only this program's sources have, and where they come from.
mark_of() {
    case $1 in
        tailbench) echo harness/tbench_server_networked.cpp ;;
        parsec) echo pkgs/kernels/streamcluster/src/streamcluster.cpp ;;
        mutilate) echo ConnectionStats.h ;;
        memtier) echo memtier_benchmark.cpp ;;
        wrk2) echo src/hdr_histogram.h ;;
    esac
}

source_of() {
    case $1 in
        tailbench) echo "TailBench 0.9: tailbench.csail.mit.edu" ;;
        parsec) echo "PARSEC 3.0 (core): parsec.cs.princeton.edu" ;;
        mutilate) echo "github.com/leverich/mutilate" ;;
        memtier) echo "github.com/redis/memtier_benchmark, 2.x" ;;
        wrk2) echo "github.com/giltene/wrk2" ;;
    esac
}

# What of it is built.
parts_of() {
    case $1 in
        tailbench) echo harness masstree silo ;;
        parsec) echo pkgs/libs/hooks pkgs/apps/blackscholes pkgs/kernels/canneal pkgs/kernels/streamcluster ;;
        *) echo . ;;
    esac
}

# Of every such file's path and content, whatever it was packed in; not of what an earlier build left there.
digest() {
    local parts
    read -ra parts <<<"$(parts_of "$1")"
    (cd "$2" && find "${parts[@]}" \( -name .git -o -name 'out-*' \) -prune -o -type f ! -name '*.o' -print0 \
        | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-64)
}

known() { awk -v tool="$1" -v digest="$2" '$1 == tool && $2 == digest { $1 = $2 = ""; sub(/^ +/, ""); print; exit }' "$originals/build/known"; }

tried() { awk -v tool="$1" '$1 == tool { $1 = $2 = ""; sub(/^ +/, ""); print }' "$originals/build/known" | paste -sd ';'; }

# Unpacked or copied to $work/source; its root is where the mark is, at most three folders down.
fetch() {
    local tool=$1 from=$2 mark root
    mark=$(mark_of "$tool")
    mkdir -p "$work/all"
    if [[ -d $from ]]; then
        cp -a "$from/." "$work/all/" || die "$from: cannot be copied"
    elif [[ -f $from ]]; then
        tar -xf "$from" -C "$work/all" --no-same-owner 2>"$work/tar.log" || bad "$from: is no tar archive that can be read: $(tail -n 1 "$work/tar.log")"
    else
        bad "$from: there is no such file or folder. Give an archive or a folder of $(source_of "$tool")"
    fi
    root=$(cd "$work/all" && find . -maxdepth 8 -path "*/$mark" -print -quit)
    [[ -n $root ]] || bad "$from: no $mark in it, so it is not $tool. Give an archive or a folder of $(source_of "$tool")"
    root=$(realpath "$work/all/${root%"$mark"}")
    mv "$root" "$work/source"
}

check() {
    local tool=$1 from=$2 sum what
    sum=$(digest "$tool" "$work/source")
    what=$(known "$tool" "$sum")
    if [[ -n $what ]]; then
        say "$tool is $what"
    else
        say "$tool: nobody has tried this copy ($sum): its build and its mends may fail. Tried: $(tried "$tool")"
    fi
    [[ ! -f $originals/build/$tool/mends ]] || python3 "$originals/build/mend.py" "$originals/build/$tool/mends" "$work/source" \
        || die "$from: this version is not the one that workloads/originals/build/$tool/mends is for. Give another, or change that file"
}

build() {
    local tool=$1 image=surefoot/$1 args=() v
    if [[ -z $engine ]] || ! "$engine" info >/dev/null 2>&1; then die "no container engine answers. Run: scripts/engine.sh start"; fi
    mkdir -p "$state"
    "$repo/scripts/images.sh" --base
    cp "$originals/build/$tool"/* "$originals/build/collect" "$originals/feed/surefoot_feed.h" "$work/"
    for v in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do [[ -z ${!v:-} ]] || args+=(--build-arg "$v"); done
    say "building $image (log: $state/image-$tool.log)"
    "$engine" build --network host "${args[@]}" -t "$image" "$work" >"$state/image-$tool.log" 2>&1 \
        || { tail -n 10 "$state/image-$tool.log" >&2; die "building $image failed; see $state/image-$tool.log"; }
}

# What runs on the host, out of the image.
export_programs() {
    local tool=$1 made
    made=$("$engine" create "surefoot/$tool")
    mkdir -p "$built"
    rm -rf "$built/$tool.part"
    "$engine" cp "$made:/export" "$built/$tool.part" || { "$engine" rm "$made" >/dev/null; die "surefoot/$tool: nothing to be had of it"; }
    "$engine" rm "$made" >/dev/null
    rm -rf "${built:?}/$tool"
    mv "$built/$tool.part" "$built/$tool"
    say "$tool: $built/$tool/bin has $(find "$built/$tool/bin" -type f -printf '%f ')"
}

adapters() {
    mkdir -p "$built/adapters/collection/adapters" "$built/adapters/pipelines"
    (cd "$repo" && cp collection/adapters/*.py "$built/adapters/collection/adapters/" && cp pipelines/__init__.py pipelines/inputs.py "$built/adapters/pipelines/")
    say "adapters: $built/adapters"
}

usage="usage: scripts/originals.sh tailbench|parsec|mutilate|memtier|wrk2 ARCHIVE-OR-FOLDER, or: scripts/originals.sh adapters"
tool=${1:-}
case $tool in
    tailbench | parsec | mutilate | memtier | wrk2) [[ $# == 2 ]] || bad "$usage" ;;
    adapters) [[ $# == 1 ]] || bad "$usage" ;;
    *) bad "$usage" ;;
esac
if [[ $tool == adapters ]]; then adapters; exit; fi
command -v python3 >/dev/null || die "no python3. Install it: sudo apt-get install python3"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch "$tool" "$2"
check "$tool" "$2"
rm -rf "$work/all"
build "$tool"
[[ $tool == parsec ]] || export_programs "$tool"
adapters
