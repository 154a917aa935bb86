"""What stands in place of an app's training loop, and what of the app no mod can stop."""

import ast
import json
import re
from collections.abc import Iterator

from flower_ldp.cli.adopt_code import Code, Function, Note

_IMPORT = "from flower_ldp.training import "
#: Methods that train, of estimators, learners and trainers.
_FITS = ("fit", "partial_fit", "fit_one_cycle", "fine_tune", "train")
_SGD = "optimizer=lambda weights: torch.optim.SGD(weights, lr=0.5),"
_LIKE = "like=...,  # a public row: entries, types and shapes of a row"
_COLLATED = "Collated({rows}, collator),  # one that pads to a fixed length"
_CLASSES = "classes=...,  # all public classes; leave it out for numbers"
_FASTAI_ROWS = "{fits}.dls.train_ds,  # tuples (*inputs, *targets), before any collate_fn"
_COLLATED_LIKE = "like=Collated([public], collator)[0],"
#: The arguments of private_training by library, or of private_fit.
_CALLS = {
    "sklearn": ("{fits},", "{words},", "rate=0.5,", _CLASSES),
    "lightning": ("{model},", "{rows},", _LIKE, "**ldp_lightning({model}),"),
    "fastai": ("{fits}.model,", _FASTAI_ROWS, _LIKE, "**ldp_fastai({fits}),"),
    "transformers": ("{model},", _COLLATED, "hugging_face,", _SGD, _COLLATED_LIKE),
}
_OTHERS = ("{model},", "{rows},", "{loss}", _SGD, _LIKE)
#: Names that these calls may need of flower_ldp.training.
_NAMES = ("Collated", "ldp_fastai", "hugging_face", "ldp_lightning", "supervised")
#: Libraries that write or send what an app measures, or ask another server.
_SENDERS = (
    *("wandb.", "mlflow.", "comet_ml.", "neptune.", "clearml.", "tensorboardX."),
    *("torch.utils.tensorboard.", "requests.", "httpx.", "smtplib."),
)
#: Of scikit-learn, what is fitted to rows before a model is.
_FITTED = tuple(
    f"sklearn.{one}." for one in ("preprocessing", "impute", "decomposition", "compose", "pipeline")
)


def training(
    codes: list[Code], handlers: list[Function], library: str
) -> tuple[list[Note], list[str]]:
    """Return what to put in place of the client's training, and the imports of that.

    ``codes`` are the files that the client imports, its own first.
    """
    function = "private_fit" if library == "sklearn" else "private_training"
    notes = [_in_place(codes, one, library, function) for one in handlers]
    body = "".join(one.text for one in notes)
    # An app may have a module lightning, or fastai, of that name.
    names = [
        f"{one[4:]} as {one}" if one.startswith("ldp_") else one
        for one in _NAMES
        if re.search(rf"\b{one}\b", body)
    ]
    lines = [f"{_IMPORT}{', '.join(sorted([*names, function]))}"]
    if "like=" in body and "torch" not in codes[0].imports:  # public rows are of tensors
        lines.insert(0, "import torch")
    return notes, lines


def _in_place(codes: list[Code], handler: Function, library: str, function: str) -> Note:
    code, found = codes[0], next(_loops(codes, handler), None)
    if found is None:
        text = f"{handler.name}: train by {function}(...) in it (docs/dpsgd_release.md)"
        return Note(code.at(handler), text, by_hand=True)
    call, source, loop = found
    statements = (one for one in ast.walk(handler) if isinstance(one, ast.stmt))
    around = (one for one in statements if one.lineno <= call.lineno <= (one.end_lineno or 0))
    statement = max(around, key=lambda one: one.lineno)
    words = [code.source(one) for one in call.args if isinstance(one, (ast.Name, ast.Attribute))]
    loads = (one for one, name in code.calls(handler) if name.endswith(".load_state_dict"))
    rows = next((one for one in words if re.search("load|data|set|rows", one)), "rows")
    given = {
        "fits": code.source(_owner(call)),
        "words": ", ".join(words),
        "model": [*(code.source(_owner(one)) for one in loads), *words, "model"][0],
        "rows": f"{rows}.dataset" if "load" in rows else rows,
        "loss": _loss(source, loop),
    }
    taken = [one.arg for one in handler.args.args]
    context = f"{taken[1]}," if len(taken) == 2 else "context,  # that client_fn got"
    arguments = [context, *_CALLS.get(library, _OTHERS)]
    body = "".join(f"\n        {one.format_map(given)}" for one in arguments)
    text = f"in place of `{ast.unparse(statement)}`\n    {function}({body}\n    )"
    return Note(code.at(statement), text + _rest(code, handler, statement, call), by_hand=True)


def _owner(call: ast.Call) -> ast.expr:
    """Return what a method is called of, or the function."""
    return call.func.value if isinstance(call.func, ast.Attribute) else call.func


def _maker(code: Code, call: ast.Call, within: Function | None = None) -> str:
    """Return the full name of what made the object whose method is called."""
    name = code.source(_owner(call))
    made = (code.assigned(name, within) if within else None) or code.assigned(name)
    return f"{code.dotted(made or _owner(call))}."


def _loops(
    codes: list[Code], handler: Function
) -> Iterator[tuple[ast.Call, Code, Function | None]]:
    """Yield calls of a handler that train, each with the function that has the loop."""
    code = codes[0]
    for call, name in code.calls(handler):
        last = name.rpartition(".")[2]
        for other in codes:
            if name == f"{other.module}.{last}" or (other is code and name == last):
                loop = other.function(last)
                if loop and any(one.endswith(".backward") for _, one in other.calls(loop)):
                    yield call, other, loop
        if isinstance(call.func, ast.Attribute) and last in _FITS:
            maker = _maker(code, call, handler)
            # model.train() only sets a mode.
            if not maker.startswith(_FITTED) and (last != "train" or maker.endswith("Trainer.")):
                yield call, code, None


def _loss(code: Code, loop: Function | None) -> str:
    """Return the argument that says a row's loss, as a training loop computes it."""
    if loop is None:
        return "lambda model, row: ...,  # the loss of one row"
    found = [
        f"{name}({', '.join(map(code.source, one.args))})" if name.endswith("Loss") else name
        for one, name in code.calls(loop)
        if name.endswith(("Loss", "cross_entropy"))
    ]
    entries = (one for one in ast.walk(loop) if isinstance(one, ast.Subscript))
    keys = [
        json.dumps(one.slice.value)
        for one in sorted(entries, key=lambda one: (one.lineno, one.col_offset))
        if isinstance(one.slice, ast.Constant) and isinstance(one.slice.value, str)
    ]
    if len(found) != 1 or len(keys) not in (0, 2):
        return f"lambda model, row: ...,  # the loss of one row, as {code.at(loop)} has it"
    if not keys:
        return f"supervised({found[0]}),"
    return f"lambda model, row: {found[0]}(model(row[{keys[0]}]), row[{keys[1]}]),"


def _rest(code: Code, handler: Function, statement: ast.stmt, training: ast.Call) -> str:
    """Say what of the handler no longer works: results of the loop, and another device."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    if _maker(code, training, handler).endswith("Trainer."):
        names.add(code.source(_owner(training)))
    told = f"\n    Take out what reads {', '.join(sorted(names))} after it." if names else ""
    for call, name in code.calls(handler):
        if name.endswith(".to") and call.lineno < statement.lineno:
            told += f"\n    Take out the device, line {call.lineno}: training is on the CPU."
        elif name.endswith(".load_state_dict"):
            part = code.assigned(code.source(_owner(call)), handler)
            if isinstance(part, ast.Attribute):
                told += (
                    f"\n    Its rows are outputs of the fixed rest of {code.source(part.value)}."
                )
    return told


def unstoppable(
    codes: list[Code], handlers: dict[str, list[Function]], route: str
) -> Iterator[Note]:
    """Yield what passes by the gate, or breaks its unit.

    A scaler fitted to a client's rows stays within what hides the client as a whole.
    """
    for kind, why in (
        ("evaluate", "raw metrics do not leave. Evaluate on the server (docs/evaluation.md)"),
        ("query", "the gate refuses query messages"),
    ):
        for one in handlers.get(kind, ()):
            yield Note(codes[0].at(one), f"is not asked: {why}")
    for code in codes:
        for name in sorted({f"{one}." for one in code.imports.values()}):
            if name.startswith(_SENDERS):
                text = "may write or send what a client measures, which no mod stops"
                yield Note(code.name, f"{name[:-1]} {text}")
            elif name.startswith("opacus."):
                yield Note(code.name, f"{name[:-1]} adds noise that no ledger counts: take it out")
        for call, name in code.calls() if route != "codeword" else ():
            last = name.rpartition(".")[2]
            if last == "fit_transform" or (
                last == "fit" and _maker(code, call).startswith(_FITTED)
            ):
                text = (
                    "is fitted to private rows, so one row changes all: no epsilon of a row holds"
                )
                yield Note(
                    code.at(call), f"{code.source(call.func)} {text} (scale by public numbers)"
                )
            elif "BatchNorm" in last:
                yield Note(code.at(call), f"{last} mixes rows and is refused: GroupNorm does not")
