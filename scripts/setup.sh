#!/bin/sh
# Makes .venv: Python 3.10 with exactly the packages of requirements.lock, and this project, editable.
# Does nothing when that is so already. Needs any Python 3 with pip; where that isn't a 3.10, one is found or fetched.
#
#   PYTHON=/path/to/python3.10   use this one
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

# Prints every file on PATH with one of the given names. A pyenv shim is among them and may refuse to run.
on_path() {
  for name in "$@"; do
    rest="${PATH:-}:"
    while [ -n "$rest" ]; do
      folder=${rest%%:*}
      rest=${rest#*:}
      if [ -n "$folder" ] && [ -x "$folder/$name" ] && [ ! -d "$folder/$name" ]; then echo "$folder/$name"; fi
    done
  done
}

# uv: the one on PATH where it runs, else our own. `pip --target` also works where Debian left out the venv module.
find_uv() {
  for uv in $(on_path uv) .venv-tools/bin/uv; do
    if "$uv" --version >/dev/null 2>&1; then echo "$uv"; return; fi
  done
}
fetch_uv() {
  for python in $(on_path python3 python); do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || continue
    "$python" -m pip --version >/dev/null 2>&1 || continue
    say "installing uv into .venv-tools with $python"
    rm -rf .venv-tools
    "$python" -m pip install -qq --disable-pip-version-check --target .venv-tools uv >&2 || continue
    if .venv-tools/bin/uv --version >/dev/null 2>&1; then echo .venv-tools/bin/uv; return; fi
  done
}

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    [ "$(version_of "$PYTHON")" = 3.10 ] || fail "PYTHON=$PYTHON is not a Python 3.10 that runs. Unset it or name one."
    echo "$PYTHON"
    return
  fi
  pyenv_root=${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}
  for python in $(on_path python3.10 python3 python) "$pyenv_root"/versions/3.10*/bin/python3.10; do
    if [ -x "$python" ] && [ "$(version_of "$python")" = 3.10 ]; then echo "$python"; return; fi
  done
  uv=$(find_uv)
  [ -n "$uv" ] || uv=$(fetch_uv)
  if [ -n "$uv" ]; then
    if python=$("$uv" python find --no-python-downloads 3.10 2>/dev/null); then echo "$python"; return; fi
    say "no Python 3.10 here: asking uv for one"
    if "$uv" python install 3.10 >&2 && python=$("$uv" python find 3.10); then echo "$python"; return; fi
  fi
  fail "Python 3.10 was not found and could not be fetched (Reverb, Launchpad and EnvPool have no wheels together for
  another). Get one in any of these ways and try again:
    pyenv install 3.10          uv python install 3.10          conda create -n py310 python=3.10
  or name one that is elsewhere: make setup PYTHON=/path/to/python3.10"
}

make_venv() {
  python=$(find_python)
  say "making .venv with $python"
  rm -rf .venv
  if ! "$python" -m venv .venv >/dev/null 2>&1; then # Debian's Python without python3.10-venv
    uv=$(find_uv)
    [ -n "$uv" ] || uv=$(fetch_uv)
    [ -n "$uv" ] || fail "$python can't make virtual environments: install its venv module (python3.10-venv on Debian)."
    rm -rf .venv
    "$uv" venv --quiet --seed --python "$python" .venv
  fi
}

install_lock() {
  started=$(date +%s)
  uv=$(find_uv)
  # uv is three times as fast, but doesn't read the settings of pip (mirrors and so on): pip gets the last word.
  if [ -z "$uv" ] || ! UV_NATIVE_TLS=true UV_SYSTEM_CERTS=true "$uv" pip sync --quiet --python .venv/bin/python requirements.lock; then
    say "installing the packages of requirements.lock with pip (half a minute to some minutes)"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
  fi
  say "packages installed in $(($(date +%s) - started)) s"
}

# Without build isolation: setuptools and wheel are in the lock, so nothing is downloaded.
install_project() {
  .venv/bin/python -m pip install -qq --disable-pip-version-check --no-index --no-deps --no-build-isolation \
    --editable .
}

case "$(uname -sm)" in
  "Linux x86_64") ;;
  *) fail "this is $(uname -sm); Reverb, Launchpad and EnvPool have wheels for Linux x86_64 only. Use such a machine or container." ;;
esac

# Two `make`s at once in one folder: the second waits for the first.
exec 9<requirements.lock
if command -v flock >/dev/null 2>&1; then flock 9; fi

# A moved folder counts as changed: the scripts of a virtual environment name its path.
lock="$(sha256sum <requirements.lock) $PWD"
project=$(sha256sum <pyproject.toml)
stamped() { [ -f ".venv/$1" ] && [ "$(cat ".venv/$1")" = "$2" ]; }
if stamped .stamp-lock "$lock" && stamped .stamp-project "$project" && [ -x .venv/bin/python ]; then exit 0; fi

if [ "$(version_of .venv/bin/python)" != 3.10 ] || { [ -f .venv/.stamp-lock ] && ! stamped .stamp-lock "$lock"; }; then
  make_venv
fi # a .venv without a stamp was made by hand or interrupted: it is completed
if ! stamped .stamp-lock "$lock"; then
  install_lock
  echo "$lock" >.venv/.stamp-lock
fi
install_project
echo "$project" >.venv/.stamp-project
say "ready: .venv/bin/python"
