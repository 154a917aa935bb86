"""Edits of ``flower-ldp adopt``: the gate in the client, the strategy in the server."""

import ast
import re
import tomllib

from flower_ldp.cli.adopt_code import Code, Note
from flower_ldp.errors import ConfigError, one_line

#: What the app must be made by; a class of another module may do anything with its mods.
_APPS = tuple(
    f"flwr.{one}.ClientApp"
    for one in ("clientapp", "client", "clientapp.client_app", "client.client_app")
)
#: The message that a route answers, and the release.
_RELEASES = {
    "codeword": ("train", "CodewordRelease"),
    "dpsgd": ("train", "DPSGDRelease"),
    "statistics": ("query", "CountsRelease"),
}
#: Mods that wait for what no report holds, or add noise that the report has.
_OUT = {
    **dict.fromkeys(("secaggplus_mod", "secagg_mod"), "a masked sum has no epsilon"),
    **dict.fromkeys(
        ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod"), "reports have their noise"
    ),
}
#: Arguments that CodewordStrategy keeps of FedAvg's; its rounds share the clients by themselves.
_KEPT = ("min_train_nodes", "min_available_nodes", "arrayrecord_key", "configrecord_key")
#: Flower's strategies that average models.
_AVERAGING = tuple(
    f"flwr.serverapp.strategy.{one}"
    for one in (
        *("FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", "FedProx", "FedMedian"),
        *("FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan"),
    )
)


def put_gate(codes: list[Code], app: str, route: str, imports: list[str]) -> list[Note]:
    """Put LdpMod first among the mods of the first file's app, with its import and others."""
    code = codes[0]
    made = code.assigned(app)
    if not code.is_one_of(made, _APPS):
        why = f"Flower's ClientApp, where {app} and ClientApp mean nothing else"
        raise ConfigError(f"{code.file}: has no line {app} = ClientApp(...) of {why}")
    for each in codes:
        if any(name.endswith(".LdpMod") for _, name in each.calls()):
            raise ConfigError(f"{each.file}: has LdpMod already: nothing is changed")
    kind, release = _RELEASES[route]
    names, mods = [release, "LdpMod"], [f"LdpMod({kind}={release}())"]
    given = {one.arg: one.value for one in made.keywords}
    arguments = [*made.args, *made.keywords]
    if len(made.args) > 1 or None in given or _has_starred(made.args):
        why = "write the arguments of ClientApp as client_fn=... and mods=[...]"
        raise ConfigError(f"{code.file}: {why}")
    if "client_fn" in given or made.args:
        names.append("legacy_client_mod")
        mods.append("legacy_client_mod")
    gates = f"from flower_ldp.clients import {', '.join(names)}"
    code.add_imports(*sorted([gates, *imports], key=lambda line: not line.startswith("import")))
    old, gate = given.get("mods"), ", ".join(mods)
    notes: list[Note] = []
    for used in (one for call, _ in code.calls() for one in call.keywords if one.arg == "mods"):
        if not isinstance(used.value, (ast.List, ast.Tuple)) or _has_starred(used.value.elts):
            why = f"write {one_line(code.source(used), 60)}, line {used.lineno}, as a list of mods"
            raise ConfigError(f"{code.file}: {why}")
        for one in used.value.elts:
            name = code.dotted(one).rpartition(".")[2]
            text = (
                f"the mod {code.source(one)} sees the app's raw reply: no mod stops what it sends"
            )
            if why := _OUT.get(name, ""):
                text = f"take out the mod {name}: {why}"
            notes.append(Note(code.at(one), text, by_hand=name in _OUT))
    if old is None:
        end = max([code.span(one)[1] for one in arguments], default=code.span(made)[1] - 1)
        code.put(end, end, f"{', ' if arguments else ''}mods=[{gate}]")
    else:
        first = code.span(old)[0] + 1
        is_beside = code.source(old)[1] not in "\n)]"
        code.put(first, first, f"{gate}, " if is_beside else f"{gate},")
    return notes


def _has_starred(values: list[ast.expr]) -> bool:
    return any(isinstance(one, ast.Starred) for one in values)


def put_strategy(code: Code, route: str, epsilon: float) -> list[Note]:
    """Replace the server's strategy, or wrap it, where it is one of Flower's."""
    started = {
        code.source(call.func.value)
        for call, name in code.calls()
        if isinstance(call.func, ast.Attribute) and name.endswith(".start")
    }
    made = [one for name in sorted(started) if (one := code.assigned(name)) is not None]
    call, new = made[0] if len(made) == 1 else None, "DPSGDStrategy(FedAvg(fraction_evaluate=0.0))"
    lines = ["from flower_ldp.strategies import DPSGDStrategy"]
    if route == "codeword":
        new = f"CodewordStrategy(Codeword(epsilon={epsilon!r}), answers_per_client=1)"
        lines = ["from flower_ldp.mechanisms import Codeword"]
        lines += ["from flower_ldp.strategies import CodewordStrategy"]
    name = "" if call is None else code.dotted(call)
    if name == f"flower_ldp.strategies.{new.partition('(')[0]}":
        return []  # the server's half was done before
    code.add_imports(*lines)
    given = {one.arg: one.value for one in call.keywords} if isinstance(call, ast.Call) else {}
    if not code.is_one_of(call, _AVERAGING) or call.args or None in given:
        text = (
            f"put `strategy = {new}` and strategy.start(...) in place of {name or 'its strategy'}"
        )
        return [Note(code.name if call is None else code.at(call), text, by_hand=True)]
    notes = [
        Note(code.at(value), f"{key} gets no metrics of clients any more")
        for key, value in given.items()
        if key in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
    ]
    if route == "codeword":
        kept = [f"{key}={code.source(given[key])}" for key in _KEPT if key in given]
        code.put(*code.span(call), ", ".join([new[:-1], *kept]) + ")")
        if (kind := name.rpartition(".")[2]) != "FedAvg":
            text = f"the rule of {kind} goes: server_optimizer= has others (docs/combines.md)"
            notes.append(Note(code.at(call), text))
        return notes
    start, end = code.span(call)
    code.put(start, start, "DPSGDStrategy(")
    if "fraction_evaluate" in given:
        code.put(*code.span(given["fraction_evaluate"]), "0.0")
    else:
        last = code.span(call.keywords[-1])[1] if given else end - 1
        code.put(last, last, f"{', ' if given else ''}fraction_evaluate=0.0")
    code.put(end, end, ")")
    return notes


def with_dependency(text: str, route: str) -> tuple[str, list[Note]]:
    """Return a pyproject.toml with this package among the dependencies, if these are lines."""
    needed = "flower-ldp[dpsgd]" if route == "dpsgd" else "flower-ldp"
    added = re.sub(r"(?m)^dependencies = \[\n", rf'\g<0>    "{needed}",\n', text, count=1)
    for one in (text, added):
        found = tomllib.loads(one)["project"].get("dependencies")
        names = found if isinstance(found, list) else []
        if any(str(name).replace("_", "-").lower().startswith(needed) for name in names):
            return one, []
    return text, [Note("pyproject.toml", f'add "{needed}" to the dependencies', by_hand=True)]
