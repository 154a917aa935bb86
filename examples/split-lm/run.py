"""Train a split language model at some epsilons, and beside it what shows whether it learned.

A falling loss shows nothing: random bits in place of embeddings bring it down as well, to the
entropy of single tokens. So each comparison has that entropy, the model in floats, with bare
bits, and with random bits, on the same text in the same number of steps.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

APP = Path(__file__).resolve().parent
sys.path[:0] = [str(APP.parent), str(APP)]

from _parties import Engine, Parties, app_config  # noqa: E402
from _runner import stop_on_termination  # noqa: E402
from split_lm import client_app, report, server_app, text, unsplit  # noqa: E402

from flower_ldp.accounting.ledger import Ledger  # noqa: E402
from flower_ldp.privacy import Unit  # noqa: E402

POLICY = """# The owner of the text: what may be released. See docs/policy.md.
data_id: text
ledger: ledger.sqlite
mode: {mode}
messages:
  # The embedding is trained on the text: conditional on it, and allowed by name. What a window
  # costs is its number of bits times half the label; a total like this promises next to nothing.
  train.forward: &allowed
    "embedding_dp:conditional": {{epsilon: {release!r}, unit: example}}
  evaluate.forward: *allowed
budgets:
  example:
    life: {{epsilon: {life!r}}}
"""
#: Small enough for a check of everything in less than a minute.
QUICK = {"context": 32, "width": 32, "layers": 1, "train-windows": 3200, "eval-windows": 128}


def _parties(config: dict[str, Any]) -> Parties:
    release = config["context"] * config["width"] * config["epsilon"] / 2
    life = config["epochs"] * release
    return Parties(
        APP,
        {"text": {}},
        lambda _, mode: POLICY.format(mode=mode, release=release, life=life),
        r"(step|party|held-out|finished)",
    )


def _private(engine: Engine, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the app once, with a new party; return its result and what its ledger holds."""
    target = folder / "result.json"
    config = {**config, "output": str(target)}
    parties = _parties(config)
    if engine is Engine.PROCESS:
        parties.in_process(
            client_app.app, lambda exchange, _: server_app.run(exchange, config), config, folder
        )
    else:
        parties.with_flower(config, folder, nodes=engine is Engine.NODES)
    (path,) = folder.glob("owner*/ledger.sqlite")
    spent = {"train": 0.0, "test": 0.0}
    with Ledger.open(path, read_only=True) as ledger:
        ledger.verify()
        for account in ledger.data_ids():
            table = account.split("/")[-2]
            amount = ledger.totals(account)[Unit.EXAMPLE].spent(Unit.EXAMPLE)
            spent[table] = max(spent[table], amount.epsilon)
    return {**json.loads(target.read_text(encoding="utf-8")), "ledger": spent}


def _compare(engine: Engine, config: dict[str, Any], labels: list[float]) -> list[dict[str, Any]]:
    runs = []
    for name, cut in unsplit.CUTS.items():
        print(f"{name}, seed {config['seed']}", flush=True)
        runs.append({"run": name, "seed": config["seed"], **unsplit.train(cut, config)})
    for label in labels:
        name = f"label {label:g}"
        print(f"{name}, seed {config['seed']}", flush=True)
        with tempfile.TemporaryDirectory(prefix="split-lm-") as folder:
            found = _private(engine, {**config, "epsilon": label}, Path(folder))
        runs.append({"run": name, "seed": config["seed"], **found})
    return runs


def _configured(source: str, other: str, changes: list[str], quick: bool) -> dict[str, Any]:
    config = app_config(APP, changes)
    if quick:
        config.update({name: value for name, value in QUICK.items() if not _given(name, changes)})
    for option, name, value in (("--text", "text", source), ("--eval-text", "eval-text", other)):
        if value not in ("", text.BUILT_IN):
            path = Path(value).resolve()
            if not path.is_file():
                raise typer.BadParameter(f"{option}: there is no file {value}")
            value = str(path)
        config[name] = value
    if config["epochs"] < 1:
        raise typer.BadParameter("--set epochs=... must be at least 1")
    try:
        text.windows(config)
    except ValueError as error:
        raise typer.BadParameter(f"--text: {error}") from None
    return config


def _given(name: str, changes: list[str]) -> bool:
    return any(change.partition("=")[0].strip() == name for change in changes)


def main(
    engine: Annotated[
        Engine, typer.Option(help="How the party and the server of a private run are run.")
    ] = Engine.PROCESS,
    source: Annotated[
        str, typer.Option("--text", help="'python-docs', or the path of a text to train on.")
    ] = text.BUILT_IN,
    other: Annotated[
        str,
        typer.Option(
            "--eval-text", help="Path of a text to evaluate on; else the last tenth of the other."
        ),
    ] = "",
    eps: Annotated[
        list[float] | None, typer.Option(help="Label epsilon of a private run; repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat all with seeds 1, 2, ...")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller model and less text, for a first look.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of the app's configuration; repeatable."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for result and plot.")] = APP / "outputs",
) -> None:
    """Train a language model whose embedding is with the owner of the text.

    Example: python examples/split-lm/run.py --text train.txt --eval-text test.txt --eps 5 --eps 2
    """
    stop_on_termination()
    labels = eps or [5.0]
    if not all(0 < label <= 100 for label in labels) or len({*labels}) < len(labels):
        raise typer.BadParameter(
            "--eps must be in (0, 100], each once; 0 is the control, which is always run: "
            "no policy releases what says nothing"
        )
    config = _configured(source, other, set_ or [], quick)
    output.mkdir(parents=True, exist_ok=True)
    found = text.windows(config)
    unigram = text.unigram_loss(found)
    sizes = {table: len(part.tokens) for table, part in found.items()}
    print(
        f"{sizes['train']} windows to train, {sizes['test']} to evaluate; "
        f"unigram entropy {unigram:.3f}",
        flush=True,
    )
    names = {name: Path(config[name]).name for name in ("text", "eval-text")}
    head = {
        "command": shlex.join(["python", "examples/split-lm/run.py", *_told(sys.argv[1:])]),
        "unigram": unigram,
        "windows": sizes,
        "config": {**config, **names},
    }
    runs: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for seed in range(1, seeds + 1):
        runs += _compare(engine, {**config, "seed": seed}, labels)
        summary = report.save(output, runs, head)
    report.publish(output, summary, head)


def _told(arguments: list[str]) -> list[str]:
    """Return the arguments without the folders of this machine."""
    return [Path(one).name if Path(one).is_absolute() else one for one in arguments]


if __name__ == "__main__":
    typer.run(main)
