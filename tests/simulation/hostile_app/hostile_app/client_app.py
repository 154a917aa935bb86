"""A client for each way in which private data could leave."""

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from flower_ldp.clients import LdpMod, SignDSRelease

CANARY = "canary-7f3a91"
CANARY_FLOAT = 1234.56789

app = ClientApp(mods=[LdpMod(train=SignDSRelease())])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Leak in the way of this client's number; from 6 on only what apps usually send."""
    partition = int(context.node_config["partition-id"])
    sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
    seed = partition + 1
    moved = {
        name: np.asarray(
            array + np.random.default_rng(seed).normal(size=array.shape), dtype=array.dtype
        )
        for name, array in sent.items()
    }
    if partition == 0:
        raise ValueError(CANARY)
    if partition == 1:
        raise SystemExit(CANARY)
    if partition == 2:
        moved["weights"] = np.full_like(moved["weights"], np.nan)
    if partition == 3:
        moved[CANARY] = np.full(3, CANARY_FLOAT, dtype=np.float32)
    if partition == 4:
        return Message(Error(code=7, reason=CANARY), reply_to=message)
    if partition == 5:
        moved["weights"] = np.full((1,), CANARY_FLOAT, dtype=np.float32)
    records = {name: Array(array) for name, array in moved.items()}
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord(records),
                "metrics": MetricRecord(
                    {CANARY: 1, "loss": CANARY_FLOAT, "num-examples": 719_934_208}
                ),
                CANARY: ConfigRecord({"note": CANARY}),
            }
        ),
        reply_to=message,
    )
