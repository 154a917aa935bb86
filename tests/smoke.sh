#!/usr/bin/env bash
# Install a wheel into a bare environment and run an app with it, in a folder without a checkout.
#
#   tests/smoke.sh dist/flower_ldp-0.2.0-py3-none-any.whl
set -euo pipefail
wheel=$(realpath "$1")
export FLWR_TELEMETRY_ENABLED=0 PIP_COMPILE=0
unset PYTHONPATH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv bare
. bare/bin/activate
pip install -q "$wheel"
pip check
flower-ldp doctor
flower-ldp new my-app
flower-ldp simulate my-app --nodes 20 --policy my-app/simulation_policy.yaml
flower-ldp ledger verify my-app/simulation-ledger.sqlite
