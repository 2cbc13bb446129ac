#!/usr/bin/env bash
# The pages of docs/ as a site in out/site: searchable, with nothing fetched when it is read, every link of it checked.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ ! -e .venv-site/.ready ] || [ requirements-site.lock -nt .venv-site/.ready ]; then
  rm -rf .venv-site
  python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target .venv-site -r requirements-site.lock
  touch .venv-site/.ready
fi
work=.surefoot/site
python scripts/site/stage.py "$work"
if ! PYTHONPATH=.venv-site NO_COLOR=1 python -m zensical build --strict --clean --config-file "$work/zensical.toml" >"$work/log" 2>&1; then
  cat "$work/log" >&2
  echo "surefoot: the site was not built: see above" >&2
  exit 1
fi
python scripts/site/check.py "$work/site"
mkdir -p out
rm -rf out/site
mv "$work/site" out/site
echo "surefoot: the site is out/site/index.html"
