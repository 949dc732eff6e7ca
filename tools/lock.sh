#!/bin/bash
# Rewrites third_party/pip/*_lock.txt from *.in: the newest versions allowed,
# valid for Python 3.11-3.14, hashes of every file, no registry names.
# usage: tools/lock.sh            (arguments are passed to `uv pip compile`)
set -euo pipefail
cd "$(dirname "$0")/../third_party/pip"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q 'uv==0.13.8'

lock() { # in out [options]: resolves one file
  "$work/venv/bin/uv" pip compile --universal --python-version 3.11 \
    --generate-hashes --no-header --no-annotate --no-config --quiet \
    --no-emit-index-url --no-emit-find-links -o "$2" "$1" "${@:3}"
}

lock requirements.in "$work/base.txt" "$@"
cp "$work/base.txt" requirements_lock.txt
# The oldest versions that users may have; tools/test_lowest.sh runs them.
lock ../../pyproject.toml requirements_lowest_lock.txt \
  --resolution lowest-direct "$@"
lock requirements_headers.in requirements_headers_lock.txt --no-deps "$@"
lock requirements_data.in requirements_data_lock.txt --no-deps "$@"
# Lingvo asks for another TensorFlow where there is a newer Python.
seqio_options=(
  --overrides requirements_seqio.in --excludes requirements_seqio_excluded.in
)
for kind in cuda tpu seqio docs; do
  options="${kind}_options[@]"
  lock requirements_$kind.in "$work/$kind.txt" -c "$work/base.txt" \
    ${!options+"${!options}"} "$@"
  # Packages of the first lock keep their versions.
  python3 - "$work/base.txt" "$work/$kind.txt" > requirements_${kind}_lock.txt <<'PY'
import re
import sys


def entries(path):
  text = open(path, encoding='utf-8').read()
  return [e for e in re.split(r'(?m)^(?=\S)', text) if e.strip()]


def name(entry):
  return entry.split('==')[0]


have = {name(e) for e in entries(sys.argv[1])}
print(''.join(e for e in entries(sys.argv[2]) if name(e) not in have), end='')
PY
done
if grep -n '://' ./*_lock.txt; then
  echo "lock.sh: a lock names a registry" >&2
  exit 1
fi
if grep -n '^tensorflow' ./*_lock.txt | grep -v requirements_seqio_lock.txt; then
  echo "lock.sh: a lock other than SeqIO's has TensorFlow" >&2
  exit 1
fi
wc -l ./*_lock.txt
