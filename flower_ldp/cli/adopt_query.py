"""The question for tables in place of an app's own query: what surely can be put, and the rest."""

import ast
import json
from collections.abc import Sequence

from flower_ldp.cli.adopt_code import Code, Function, Note
from flower_ldp.errors import ConfigError

_LEVELS = (
    'the public levels of each column: edges as range(0, 101, 10), or categories as ["0", "1"]'
)
_READ = "read tables = query.aggregate(replies) in place of the replies: tables[...].rows()"


def put_question(
    server: Code, app: str, client: Code, handler: Function, epsilon: float
) -> list[Note]:
    """Put a CountsQuery after the server's app, and its content into the messages.

    Columns are those that the client sends as arrays, or that it names in a list of texts; levels
    are the bins of its histograms.
    """
    made = server.assigned(app)
    if made is None or server.times("query"):
        raise ConfigError(f"{server.file}: has no one line {app} = ServerApp(), or its own query")
    found = list(client.calls(handler))
    counted = [call for call, name in found if name.endswith(".histogram") and call.args]
    bins = [one.value for call in counted for one in call.keywords if one.arg == "bins"]
    names = {one.id for value in bins for one in ast.walk(value) if isinstance(one, ast.Name)}
    levels = client.source(bins[0]) if bins and names <= set(server.imports) else "..."
    sent = [one for call, name in found if name.endswith(".ArrayRecord") for one in call.args]
    lists: list[Sequence[ast.expr | None]] = [one.keys for one in sent if isinstance(one, ast.Dict)]
    lists += [one.elts for one in ast.walk(client.tree) if isinstance(one, ast.List)]
    texts = next(filter(None, map(_texts, lists)), [])
    columns = ", ".join(f"{json.dumps(one)}: {levels}" for one in texts)
    end = server.span(made)[1]
    server.put(end, end, f"\nquery = CountsQuery({{{columns}}}, epsilon={epsilon!r})")
    server.add_imports("from flower_ldp.strategies import CountsQuery")
    rows = "reply with the rows in place of their counts: {}"
    told: list[tuple[Code, ast.expr, str]] = [
        (client, one, rows.format(client.source(one.args[0]))) for one in counted
    ]
    if levels == "..." or not columns:
        told.append((server, made, f"write into CountsQuery(...) {_LEVELS}"))
    for call, name in server.calls():
        if name.endswith(".send_and_receive"):
            told.append((server, call, _READ))
        for one in call.keywords:
            value = server.assigned(server.source(one.value)) or one.value
            if name.endswith(".Message") and one.arg == "content":
                if server.is_one_of(value, ["flwr.app.RecordDict"]) and not value.args:
                    server.put(*server.span(value), "query.content()")
                else:
                    told.append((server, call, "send the records of query.content() too"))
    return [Note(code.at(node), text, by_hand=True) for code, node, text in told]


def _texts(nodes: Sequence[ast.expr | None]) -> list[str]:
    """Return texts, if all are."""
    found = [one.value for one in nodes if isinstance(one, ast.Constant)]
    texts = [one for one in found if isinstance(one, str)]
    return texts if len(texts) == len(nodes) else []
