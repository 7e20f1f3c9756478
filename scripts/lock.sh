#!/bin/sh
# Writes requirements.lock from pyproject.toml. The lock names no address, so it works with any package index.
set -eu
cd "$(dirname "$0")/.."

uv=
for candidate in uv .venv-tools/bin/uv; do
  if "$candidate" --version >/dev/null 2>&1; then uv=$candidate; break; fi
done
if [ -z "$uv" ]; then
  .venv/bin/python -m pip install -qq --disable-pip-version-check --target .venv-tools uv
  uv=.venv-tools/bin/uv
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The old lock is the starting point: only what pyproject.toml asks for moves. UPGRADE=1 moves everything it allows.
[ -n "${UPGRADE:-}" ] || cp requirements.lock "$work/requirements.lock"
# numpy's override is in pyproject.toml, [tool.uv].
UV_NATIVE_TLS=true UV_SYSTEM_CERTS=true "$uv" pip compile pyproject.toml --quiet --extra dev --python-version 3.10 \
  --generate-hashes --no-emit-index-url --no-header --output-file "$work/requirements.lock" >/dev/null
if grep -n '://' "$work/requirements.lock"; then
  echo "lock: the lines above name an address; nothing was written" >&2
  exit 1
fi
cp "$work/requirements.lock" requirements.lock
echo "lock: wrote requirements.lock ($(grep -c '==' requirements.lock) packages)"
