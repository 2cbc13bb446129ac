#!/usr/bin/env bash
# stage.sh STAGE BINARIES [SUREFOOTD] - lay out the archive of the node side in STAGE, with surefootd and surefoot-loadgen of the folder BINARIES.
#
# SUREFOOTD writes manual pages and completions: one that runs here; default: that of BINARIES.
set -euo pipefail
stage=$1
binaries=$2
surefootd=${3:-$binaries/surefootd}

mkdir -p "$stage"/{bin,completions,doc,etc,man,share,systemd}
cp "$binaries/surefootd" "$binaries/surefoot-loadgen" "$stage/bin/"
# What `--server virtual:NAME`, eval and record know servers and services from.
cp -r scheduler/vserver/profiles "$stage/share/"
cp packaging/systemd/* "$stage/systemd/"
cp packaging/node.toml packaging/surefootd.env "$stage/etc/"
cp packaging/install.sh LICENSE "$stage/"
cp LICENSE "$stage/doc/"
# All pages: messages name them, and they name each other.
cp docs/*.md "$stage/doc/"
cp -r docs/decisions docs/studies "$stage/doc/"
cp -r examples/monitoring "$stage/doc/"
"$surefootd" manual --out "$stage/man"
for shell in bash zsh fish; do "$surefootd" completions "$shell" >"$stage/completions/$shell"; done
# Entries of the catalogue: what they start is an image, which is built or pulled elsewhere.
for entry in workloads/*/workload.toml; do install -D -m 644 "$entry" "$stage/share/$entry"; done
chmod -R u=rwX,go=rX "$stage"
