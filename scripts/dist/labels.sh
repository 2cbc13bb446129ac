# Labels of our container images, as the Open Container Initiative names them; sourced by scripts that build images.
oci_labels() { # TITLE [LICENCE]
  local version revision
  local root
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
  revision=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)
  local of=org.opencontainers.image
  labels=(--label "$of.title=$1" --label "$of.version=$version" --label "$of.revision=$revision" --label "$of.vendor=Surefoot"
    --label "$of.licenses=${2:-Apache-2.0}")
}
