#!/bin/sh
# Finds a Python that the pinned packages have wheels for, and lets it do the rest (scripts/set_up.py).
set -eu
cd "$(dirname "$0")/.."

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

if [ -n "${PYTHON:-}" ]; then
    if ! fits "$PYTHON"; then
        echo "setup: PYTHON=$PYTHON is not a working Python 3.11 to 3.14" >&2
        exit 1
    fi
    exec "$PYTHON" -m scripts.set_up "$@"
fi
for name in python3 python3.13 python3.12 python3.14 python3.11 python; do
    if command -v "$name" >/dev/null && fits "$name"; then
        exec "$name" -m scripts.set_up "$@"
    fi
done
echo "setup: no Python 3.11 to 3.14 found (looked for python3, python3.11 ... python3.14)." >&2
echo "setup: install one, or name it: make setup PYTHON=/path/to/python3.12" >&2
exit 1
