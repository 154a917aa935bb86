"""Asks one node for a round of private training and for a block of embeddings; writes it down."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from flower_ldp.mechanisms import UnaryEncoding
from flower_ldp.wire.embedding import FORWARD, EmbeddingProposal, TableTerms, embeddings_length
from flower_ldp.wire.record_ids import Records, RecordTables

TABLES = RecordTables({"train": Records.of(f"patient-{row}" for row in range(5))}, 3)
MECHANISM = UnaryEncoding(2.0, 2)
MODEL = {"weight": np.zeros((1, 2), np.float32), "bias": np.zeros(1, np.float32)}

app = ServerApp()


def _contents() -> dict[str, RecordDict]:
    terms = TableTerms("train", TABLES.tables["train"].digest, 5, 3)
    block = EmbeddingProposal(MECHANISM, terms, 0).to_fields()
    model = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
    return {
        "train": RecordDict({"arrays": model, "config": ConfigRecord({"server-round": 1})}),
        FORWARD: RecordDict({"ldp.proposal": ConfigRecord({**block})}),
    }


def _told(reply: Message) -> object:
    if reply.has_error():
        return reply.error.reason
    if "ldp.report" in reply.content:
        payload = reply.content["ldp.report"]["payload"]
        return ["report", len(payload) == embeddings_length(MECHANISM, 3)]
    moved = {name: bool(one.numpy().any()) for name, one in reply.content["arrays"].items()}
    return ["model", moved, dict(reply.content["metrics"])]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask, and write all answers down."""
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    asked = [
        Message(content=content, dst_node_id=nodes[0], message_type=kind)
        for kind, content in _contents().items()
    ]
    replies = grid.send_and_receive(asked, timeout=60)
    found = {reply.metadata.message_type: _told(reply) for reply in replies}
    Path(str(context.run_config["received"])).write_text(json.dumps(found), encoding="utf-8")
    print("finished", flush=True)
