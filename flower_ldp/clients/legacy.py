"""Old-style Flower apps (``NumPyClient``, ``client_fn``) behind the gate.

::

    app = ClientApp(
        client_fn=client_fn,
        mods=[LdpMod(train=SignDSRelease()), legacy_client_mod],
    )
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp.errors import ReleaseError
from flower_ldp.wire.proposal import PROPOSAL_KEY


def legacy_client_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Translate a train message for an old-style app, and its answer back.

    Put it **behind** the gate. ReleaseError if there is not exactly one model, or the answer is no
    success or has another number of arrays.
    """
    if message.metadata.message_type != MessageType.TRAIN:
        return call_next(message, context)
    asked = message.content
    if len(asked.array_records) != 1:
        raise ReleaseError(f"expected one ArrayRecord, found {len(asked.array_records)}")
    (model,) = asked.array_records.values()
    # The server's configuration: the one kind of value that old apps can read.
    config = ConfigRecord()
    for key, record in asked.config_records.items():
        for name, value in record.items():
            if key != PROPOSAL_KEY and isinstance(value, (bool, bytes, float, int, str)):
                config[name] = value
    parameters = ArrayRecord(dict(model))
    message.content = RecordDict({"fitins.parameters": parameters, "fitins.config": config})
    try:
        reply = call_next(message, context)
    finally:
        message.content = asked
    if reply.has_error():
        return reply
    return Message(RecordDict({"arrays": _trained(reply.content, list(model))}), reply_to=message)


def _trained(content: RecordDict, names: list[str]) -> ArrayRecord:
    status = content.config_records.get("fitres.status")
    if status is None or status.get("code") != 0:
        raise ReleaseError(f"the app reports no success: {dict(status or {})}")
    arrays = content.array_records.get("fitres.parameters")
    if arrays is None or len(arrays) != len(names):
        raise ReleaseError(f"the app returned {len(arrays or ())} arrays, sent were {len(names)}")
    trained = zip(names, arrays.values(), strict=True)
    return ArrayRecord({name: Array(array.numpy()) for name, array in trained})
