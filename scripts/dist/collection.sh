#!/usr/bin/env bash
# collection.sh [OUT] - the playbooks as an Ansible collection, OUT/surefoot-hosts-VERSION.tar.gz; default: dist.
#
# A collection has its playbooks in a folder, and names its own shared code by the collection's name.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=${1:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/playbooks"
for file in playbooks/*.yml; do
  [ "$file" = playbooks/galaxy.yml ] || cp "$file" "$work/playbooks/"
done
cp -r playbooks/{README.md,galaxy.yml,plugins,roles} "$work/"
cp LICENSE "$work/"
find "$work" -name __pycache__ -prune -exec rm -r {} +
mkdir "$work/meta"
printf -- '---\nrequires_ansible: ">=2.19"\n' >"$work/meta/runtime.yml"
module=$work/plugins/modules/surefoot_host_state.py
sed -i 's/^from ansible\.module_utils import surefoot_hoststate as/from ansible_collections.surefoot.hosts.plugins.module_utils import surefoot_hoststate as/' "$module"
grep -q 'ansible_collections\.surefoot\.hosts\.plugins' "$module" || { echo "collection: $module names its shared code otherwise" >&2; exit 1; }
ansible-galaxy collection build --force --output-path "$out" "$work" >/dev/null
printf 'collection: %s\n' "$out"/surefoot-hosts-*.tar.gz
