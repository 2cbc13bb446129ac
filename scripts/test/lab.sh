#!/usr/bin/env bash
# lab.sh - the lab in containers (docs/team.md): a campaign, a small `dvc repro` and its runs on the tracking server, as an ordinary user.
# Builds the images first (make image-lab; minutes and 850 MB the first time).
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=${SUREFOOT_ENGINE:-$(command -v docker || command -v podman)}
command -v docker-compose >/dev/null || scripts/install-packages.sh "the lab's test" docker-compose
scripts/dist/image-lab.sh

clone=$(mktemp -d)
export COMPOSE_PROJECT_NAME=surefoot-test-lab-$$
SUREFOOT_MLFLOW_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export SUREFOOT_MLFLOW_PORT SUREFOOT_UID=1234 SUREFOOT_GID=1234
compose() { docker-compose --file "$clone/packaging/lab/compose.yaml" --ansi never "$@" </dev/null; }
end() {
  compose down --volumes >/dev/null 2>&1 || true
  rm -rf "$clone"
}
trap end EXIT
lab() { compose run --rm lab "$@"; }
die() { printf 'test-lab: %s\n' "$1" >&2; compose logs --tail 20 mlflow database >&2 || true; exit 1; }

git clone --quiet . "$clone"
chown -R "$SUREFOOT_UID:$SUREFOOT_GID" "$clone"
lab python tests/quick.py params.yaml lab data/lab/server-1 || die "python in the lab failed"
cat >"$clone/lab.toml" <<'END'
name = "lab"
seed = 1
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian"]
rps = "catalogue"
threads = [36]
cores = "1..36 step 3"
ways = "1..20 step 3"
[sampling]
interval_ms = 1000
samples = 2
END
lab surefoot campaign run lab.toml --out data/lab || die "the campaign failed"
lab dvc repro register@lab || die "dvc repro failed"
lab dvc status register@lab | grep -q "up to date" || die "dvc repro left something to do"
[ "$(stat -c %u "$clone/bundles/lab.tar")" = "$SUREFOOT_UID" ] || die "bundles/lab.tar is not the user's"
curl --silent --show-error --fail "http://127.0.0.1:$SUREFOOT_MLFLOW_PORT/api/2.0/mlflow/registered-models/search" | grep -q surefoot-a-lab \
  || die "the tracking server has no model surefoot-a-lab"
refused=$(curl --silent --output /dev/null --write-out '%{http_code}' --header 'Host: elsewhere.example' "http://127.0.0.1:$SUREFOOT_MLFLOW_PORT/api/2.0/mlflow/registered-models/search")
[ "$refused" = 403 ] || die "a request for another host was answered with $refused"
"$engine" run --rm surefoot/lab sh -c 'test "$(id -u)" != 0' || die "the image's user is root"
echo "test-lab: campaign, dvc repro and tracking server work in containers"
