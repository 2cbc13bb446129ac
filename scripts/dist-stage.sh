#!/usr/bin/env bash
# dist-stage.sh STAGE BINARIES - lay out the archive of the node side in STAGE, with surefootd and surefoot-loadgen of the folder BINARIES.
set -euo pipefail
stage=$1
binaries=$2

mkdir -p "$stage"/{bin,doc,etc,share,systemd}
cp "$binaries/surefootd" "$binaries/surefoot-loadgen" "$stage/bin/"
# What `--server virtual:NAME`, eval and record know servers and services from.
cp -r scheduler/vserver/profiles "$stage/share/"
cp packaging/systemd/* "$stage/systemd/"
cp packaging/node.toml packaging/surefootd.env "$stage/etc/"
cp packaging/install.sh LICENSE "$stage/"
cp LICENSE "$stage/doc/"
for doc in install-node node-config latency-feed privileges recovery record-and-top resctrlfs bundle-format workload-format oracle explain; do
  [ ! -e "docs/$doc.md" ] || cp "docs/$doc.md" "$stage/doc/"
done
chmod -R u=rwX,go=rX "$stage"
