"""What a run leaves behind: a history file."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import UserConfig
from flwr.serverapp.strategy import Result

from flower_ldp.privacy import PrivacySpent, Unit, meaning
from flower_ldp.safe_files import replacing


def write_history(result: Result, config: UserConfig, target: Path) -> None:
    """Write settings and rounds as JSON, and print the last accuracy and what it cost.

    A round has ``accuracy``, ``epsilon-round``, ``epsilon-total`` and ``bytes-up`` per client.
    """
    rounds = [
        {
            "round": number,
            **result.evaluate_metrics_serverapp.get(number, {}),
            **result.train_metrics_clientapp.get(number, {}),
        }
        for number in sorted(result.evaluate_metrics_serverapp)
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file:
        file.write(json.dumps({"config": dict(config), "rounds": rounds}, indent=1).encode())
    last = rounds[-1]
    print(f"accuracy {last['accuracy']:.4f} after {last['round']} rounds", flush=True)
    if "epsilon-total" in last:
        spent = PrivacySpent(Unit.CLIENT, float(last["epsilon-total"]), 0.0)
        print(f"each client has spent {spent}. {meaning(spent)}", flush=True)
