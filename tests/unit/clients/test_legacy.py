"""An untouched NumPyClient behind the gate, through Flower's own client code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from flower_ldp.clients import LdpMod, SignDSRelease, legacy_client_mod
from flower_ldp.mechanisms import SignDS
from flower_ldp.mechanisms.signds_round import decode_report
from flower_ldp.refusals import FAILED
from flower_ldp.wire.proposal import REPORT_KEY
from tests.fixtures import context, message, payload, proposal

pytestmark = pytest.mark.usefixtures("simulation_policy")

#: Of 315 entries the 15 largest: at this epsilon a report names ten of them but once in e^100.
SELECTION = SignDS(epsilon=100.0, k=0.0477, dim_out=10)
MODEL = {
    "layer.weight": np.zeros((20, 15), dtype=np.float32),
    "norm.count": np.array(3, dtype=np.int64),
    "layer.bias": np.zeros(15, dtype=np.float32),
}


class Quickstart(NumPyClient):
    """A client as Flower's old quickstart wrote it."""

    seen: dict[str, Any]

    def __init__(self, extra: int = 0) -> None:
        self.extra = extra

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        type(self).seen = {"config": config, "shapes": [p.shape for p in parameters]}
        weight, count, bias = parameters
        if self.extra < 0:
            raise ValueError("secret-canary")
        trained = [weight + np.eye(20, 15, dtype=np.float32), count + 1, bias]
        return trained + [bias] * self.extra, 4711, {"secret-metric": 0.5}


def answer(client: NumPyClient) -> Message:
    def client_fn(_: Context) -> Any:
        return client.to_client()

    app = ClientApp(client_fn=client_fn, mods=[LdpMod(train=SignDSRelease()), legacy_client_mod])
    content = proposal(MODEL, SELECTION)
    content["config"] = ConfigRecord({"server-round": 3, "lr": 0.1, "list": [1, 2]})
    return app(message(content), context())


def test_an_untouched_numpy_client_trains_and_its_report_is_about_its_update() -> None:
    reply = answer(Quickstart())
    assert list(reply.content) == [REPORT_KEY]
    indices, sign, _ = decode_report(payload(reply), dimension=315, dim_out=10, has_bit=False)
    grown = set(range(0, 240, 16))  # the diagonal
    if sign == 1:
        assert set(indices.tolist()) < grown
    assert Quickstart.seen == {
        "config": {"server-round": 3, "lr": 0.1},
        "shapes": [(20, 15), (), (15,)],
    }
    assert "4711" not in repr(reply)
    assert "secret" not in repr(reply)


@pytest.mark.parametrize("extra", [-1, 1])
def test_an_old_app_that_fails_or_has_other_arrays_sends_the_constant(extra: int) -> None:
    reply = answer(Quickstart(extra))
    assert reply.error.reason == FAILED
    assert "secret" not in repr(reply)


def test_the_message_is_the_same_after_the_translation() -> None:
    sent = message(proposal(MODEL, SELECTION))
    before = list(sent.content)

    def app(inner: Message, _: Context) -> Message:
        assert list(inner.content) == ["fitins.parameters", "fitins.config"]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        legacy_client_mod(sent, context(), app)
    assert list(sent.content) == before


def test_other_messages_pass_unchanged() -> None:
    sent = message(proposal(MODEL, SELECTION), kind="evaluate")
    assert legacy_client_mod(sent, context(), lambda inner, _: inner) is sent
