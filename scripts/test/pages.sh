#!/usr/bin/env bash
# Every page in a headless browser (tests/trial_pages.py), and the site of docs/ as files (tests/trial_site.py). The browser is the distribution's; axe-core comes out of a wheel that carries it.
set -euo pipefail
cd "$(dirname "$0")/../.."

browser=""
look() { for name in chromium chromium-browser google-chrome; do if command -v "$name" >/dev/null; then browser=$name; return; fi; done; }
look
if [ -z "$browser" ]; then scripts/install-packages.sh "make test-pages" chromium fonts-dejavu-core; look; fi
[ -n "$browser" ] || { echo "surefoot: no chromium, chromium-browser or google-chrome. Install one, then run make test-pages again." >&2; exit 1; }

# no code of the wheel is run: of its files axe.min.js alone is used
if [ ! -e .venv-pages/.ready ] || [ requirements-pages.lock -nt .venv-pages/.ready ]; then
  rm -rf .venv-pages
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target .venv-pages -r requirements-pages.lock
  touch .venv-pages/.ready
fi
axe=$(find .venv-pages -name axe.min.js | head -n 1)
[ -n "$axe" ] || { echo "surefoot: requirements-pages.lock has no wheel with axe.min.js. Restore it (git checkout requirements-pages.lock)." >&2; exit 1; }
PATH=$PWD/.venv/bin:$PATH scripts/site/build.sh
SUREFOOT_BROWSER=$browser SUREFOOT_AXE=$PWD/$axe .venv/bin/python -m pytest -p no:cacheprovider -s tests/trial_pages.py tests/trial_site.py
