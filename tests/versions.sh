#!/usr/bin/env bash
# Run the unit tests from the wheel, each time in a bare environment: the versions that are
# declared are those that hold.
#
#   tests/versions.sh                          # python3 with the oldest and the newest flwr
#   tests/versions.sh python3.13 1.32.0        # one interpreter with some versions
#   tests/versions.sh python3.11 oldest newest -- -k gate
#
# "oldest" is the first version that pyproject.toml admits, "newest" what pip chooses. What stands
# behind -- goes to pytest. Needs git and the network.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
shift || true
versions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  versions+=("$1")
  shift
done
[ $# -eq 0 ] || shift
[ ${#versions[@]} -gt 0 ] || versions=(oldest newest)
export FLWR_TELEMETRY_ENABLED=0 OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# pip takes the name of the option, PIP_NO_COMPILE=1, as "compile".
export PIP_COMPILE=0
unset PYTHONPATH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
oldest=$(sed -n 's/^    "flwr>=\([0-9.]*\),.*/\1/p' pyproject.toml)

# The tests' files without the package: what they import is what was installed.
mkdir "$work/tree"
git ls-files -z | xargs -0 tar -c --ignore-failed-read | tar -x -C "$work/tree"
"$python" -m venv "$work/build"
"$work/build/bin/pip" install -q build
"$work/build/bin/python" -m build --outdir "$work/dist" "$work/tree" >"$work/build.log" 2>&1 ||
  { cat "$work/build.log"; exit 1; }
rm -rf "$work/tree/flower_ldp"

failed=()
for version in "${versions[@]}"; do
  case $version in
    oldest) flwr="flwr==$oldest" ;;
    newest) flwr="flwr" ;;
    *) flwr="flwr==$version" ;;
  esac
  rm -rf "$work/bare"
  "$python" -m venv "$work/bare"
  "$work/bare/bin/pip" install -q "$work"/dist/*.whl "$flwr" hypothesis pytest pytest-xdist
  "$work/bare/bin/pip" check
  "$work/bare/bin/flower-ldp" --version
  echo "== $("$work/bare/bin/python" --version), $("$work/bare/bin/pip" freeze | grep '^flwr==')"
  (cd "$work/tree" && "$work/bare/bin/python" -m pytest -q tests/unit "$@") || failed+=("$version")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed with flwr ${failed[*]}"; exit 1; }
