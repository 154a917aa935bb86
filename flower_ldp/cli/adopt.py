"""``flower-ldp adopt``: the route of a Flower app, and the diff and the policy that it takes."""

import shlex
import sys
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Literal

import typer

from flower_ldp.advice import FEW_CLIENTS, Verdict, advise
from flower_ldp.cli.adopt_code import Code, Note, check_within, diff_of
from flower_ldp.cli.adopt_edits import put_gate, put_strategy, with_dependency
from flower_ldp.cli.adopt_loop import training, unstoppable
from flower_ldp.cli.adopt_query import put_question
from flower_ldp.cli.output import Report, command, single, wrong
from flower_ldp.cli.policy_sample import PolicySample, Route
from flower_ldp.errors import ConfigError, one_line, quoted
from flower_ldp.facts import Fact
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.safe_files import replacing
from flower_ldp.simulation.apps import find_federation, modules_of, read_project

app = single()

#: Steps of a round, and the share of a client's rows in each: together one pass.
_STEPS, _RATE = 5, 0.2
#: Rounds of an app that does not name them.
_ROUNDS = 10
_POLICY = "policy.yaml"
#: Routes that have a diff, and what their policy is of.
_CHANGES: dict[str, Route] = {"codeword": "codeword", "dpsgd": "dpsgd", "statistics": "counts"}
#: Modules whose models a client trains; those built on others come first.
_TREES = ("xgboost", "catboost", "lightgbm")
_LANGUAGE = ("trl", "peft")
_ARRAYS = ("jax", "tensorflow", "keras")
_TORCH = ("lightning", "pytorch_lightning", "fastai", "transformers", "monai", "torch")
_LIBRARIES = (*_TREES, *_LANGUAGE, *_TORCH, *_ARRAYS, "sklearn")
_NO_TREES = (
    "splits of a tree are values of rows, and no mechanism here protects them. Train "
    "LogisticRegression by private_fit, or a small torch network, on the same columns"
)
_COUNTS = "sites answer by tables with noise. Each round that asks costs again: ask in one"
_PARTIES = (
    "split learning: LdpMod(actions={the embeddings' message: EmbeddingOnceRelease(...)}, "
    "acknowledged=[the gradients' message]) on the clients, and EmbeddingQuery on the server "
    "(docs/embedding.md)"
)
_NO_TORCH = (
    "DP-SGD trains torch models, and this one is of {}. Write it in torch; or have {} clients or "
    "more and a small model, for codewords"
)
_TOO_LARGE = (
    "DP-SGD computes each row's gradient on the CPU, too slow for a language model's adapters. "
    "Train a small torch head on the frozen model's outputs"
)
_PER_ROW = "DP-SGD hides each row, where a client holds many people's"
#: What a library's models need besides.
_BESIDES = {
    ("dpsgd", "monai"): ". MONAI's networks need norm='instance', and rows no Rand transforms",
    ("dpsgd", "sklearn"): ". private_fit trains linear models, on publicly scaled features",
    ("codeword", "sklearn"): ". Each client must name all classes (docs/combines.md)",
}


@command(app, "adopt", "flower-ldp adopt my-app --clients 5 --examples 1200")
@dataclass(frozen=True)
class Adoption:
    """Say how a Flower app becomes private: its route, a diff with a policy, and what to mind.

    Files are read, and nothing is imported. What cannot be changed surely is printed as lines to
    put in by hand. The policy is for simulations; "flower-ldp policy sample" starts the owner's.

    Parameters
    ----------
    app_dir
        With the app's pyproject.toml.
    clients
        That there will be; by default as flwr run simulates them.
    params
        Weights that learn: whether they are few enough for codewords.
    import_model
        MODULE:FUNCTION of the app that makes its torch model: imported and called, to count them.
    examples
        Rows of a client, public; for the policy of DP-SGD or of tables.
    epsilon
        Of the whole run: of a client, or with DP-SGD and tables of a row.
    delta
        Of the whole run, with DP-SGD; below 1 / examples.
    for_
        Route, in place of the one that the numbers give.
    write
        Apply the diff.
    """

    app_dir: Annotated[Path, typer.Argument(exists=True, file_okay=False)]
    clients: Annotated[int | None, Bounded("[1, 4294967295]")] = None
    params: Annotated[int | None, Bounded("[2, 4294967295]")] = None
    import_model: str | None = None
    examples: Annotated[int | None, Bounded("[1, 1000000000000]")] = None
    epsilon: Annotated[float, Bounded("[0.01, 100]")] = 8.0
    delta: Annotated[float, Bounded("[1e-10, 0.5]")] = 1e-5
    for_: Annotated[Literal["codeword", "dpsgd"] | None, typer.Option("--for")] = None
    write: bool = False

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        try:
            self._answer(report)
        except (MemoryError, RecursionError) as error:
            raise ConfigError(f"{self.app_dir}: its files nest too deep to be read") from error

    def _answer(self, report: Report) -> None:
        names, config = read_project(self.app_dir)
        app = names[1].partition(":")[2]
        (server, *_), codes = (_codes(self.app_dir, name) for name in names)
        server = next((code for code in codes if code.file == server.file), server)
        roots = {name.partition(".")[0] for code in codes for name in code.imports.values()}
        library = next((one for one in _LIBRARIES if one in roots), "arrays")
        library = library.removeprefix("pytorch_")
        clients, source = self.clients, "--clients"
        if clients is None:
            federation = find_federation(self.app_dir)
            clients, source = federation.nodes, federation.source
        handlers = codes[0].handlers(app)
        route, reason = self._route(codes[0], handlers, library, clients)
        rounds = config.get("num-server-rounds")
        named = rounds if type(rounds) is int and rounds > 0 else 0
        policy = self._policy(route, named or _ROUNDS)
        report.tell(
            Fact("library", library, "library"),
            Fact("clients", clients, "clients", f", by {source}"),
            Fact("clients_from", source),
            Fact("route", route, "route"),
            Fact("reason", reason, "reason" if route in _CHANGES else ""),
        )
        if route not in _CHANGES:
            return report.problem(f"{self.app_dir}: no change, because {reason}")
        if source == "Flower's default" and self.for_ is None:
            report.warn("the number of clients decides the route: give --clients")
        imports: list[str] = []
        notes: list[Note] = []
        if route == "dpsgd":
            if policy is not None and not named:
                why = f"is no number, so the plan has {_ROUNDS} rounds: set it, and ask again"
                report.warn(f"pyproject.toml: num-server-rounds {why}")
            notes, imports = training(codes, handlers["train"], library)
        notes += put_gate(codes, app, route, imports)
        if route == "statistics":
            main, (handler, *_) = names[0].partition(":")[2], handlers.pop("query")
            notes += put_question(server, main, codes[0], handler, self.epsilon)
        else:
            notes += put_strategy(server, route, self.epsilon)
        notes += unstoppable(codes, handlers, route)
        changed = {code.name: (code.data.decode(), code.edited()) for code in (codes[0], server)}
        project = self.app_dir.resolve() / "pyproject.toml"
        check_within(project.parent, project)
        old = project.read_bytes().decode()
        new, told = with_dependency(old, route)
        notes += told
        if new != old:
            changed[project.name] = old, new
        report.warn(*(f"{one.place}: {one.text}" for one in notes if not one.by_hand))
        report.facts["by_hand"] = []
        for one in (one for one in notes if one.by_hand):
            report.line(f"\nby hand, {one.place}: {one.text}")
            report.facts["by_hand"].append({"place": one.place, "text": one.text})
        self._change(changed, policy, report)
        if self.write:
            place, policy_file = (shlex.quote(str(self.app_dir / one)) for one in ("", _POLICY))
            when = "Once that is done by hand, try" if report.facts["by_hand"] else "Try"
            report.line(
                f"\nwritten. {when} it:\n"
                f"  flower-ldp simulate {place} --nodes {clients} --policy {policy_file}\n"
                "A second run pays again, unless the first is forgotten:\n"
                f"  flower-ldp ledger forget {policy_file}"
            )

    def _route(
        self, client: Code, handlers: Collection[str], library: str, clients: int
    ) -> tuple[str, str]:
        """Return the route and its reason in one line."""
        if library in _TREES:
            return "none", _NO_TREES
        if "query" in handlers:
            if any(name.endswith(".backward") and call.args for call, name in client.calls()):
                return "embedding", _PARTIES
            if "train" not in handlers:
                return "statistics", _COUNTS
        if "train" not in handlers:
            raise ConfigError(f"{client.file}: no function of it answers train messages")
        route, reason = self._by_numbers(clients)
        route = self.for_ or route
        if route == "dpsgd" and library in _ARRAYS:
            return "none", _NO_TORCH.format(library, FEW_CLIENTS)
        if route == "dpsgd" and library in _LANGUAGE:
            return "none", _TOO_LARGE
        if self.for_ is not None:
            return route, "asked for by --for"
        return route, reason.rstrip(".") + _BESIDES.get((route, library), "")

    def _by_numbers(self, clients: int) -> tuple[str, str]:
        if clients < FEW_CLIENTS:
            few = f"with {clients} clients, noise that hides one hides what there is to learn"
            return "dpsgd", f"{few}. {_PER_ROW}"
        once = f"{clients:,} clients are asked once each, and each is hidden as a whole"
        weights = self._weights()
        if weights is None:
            return "codeword", f"{once}. It takes a small model: --params says if this one is"
        outlook = advise(clients=clients, weights=weights, total_epsilon=self.epsilon).outlook
        if outlook.verdict is not Verdict.HOPELESS:
            return "codeword", f"{once}. {outlook.judgement()}"
        good = f"for codewords {weights:,} weights are hopeless: good would be {outlook.remedies}"
        return "dpsgd", f"{good}. {_PER_ROW}. {outlook.route}"

    def _weights(self) -> int | None:
        if self.import_model is None:
            return self.params
        sys.path.insert(0, str(self.app_dir.resolve()))
        try:
            model = resolve_name(self.import_model)()
            return int(sum(one.numel() for one in model.parameters() if one.requires_grad))
        except Exception as error:  # of the app's own code
            told = f"makes no torch model: {type(error).__name__}: {one_line(str(error), 200)}"
            raise wrong("--import-model", told) from error
        finally:
            sys.path.pop(0)

    def _change(
        self, texts: dict[str, tuple[str, str]], policy: str | None, report: Report
    ) -> None:
        """Print the diff, with the policy; apply it if that was asked."""
        if policy is None:
            report.warn("without --examples, the rows of a client, there is no policy")
        else:
            texts[_POLICY] = "", policy
        diff = "".join(diff_of(name, *both) for name, both in texts.items())
        report.line(f"\n{diff}".rstrip("\n"), diff=diff, policy=policy, written=[])
        if self.write:
            _write(self.app_dir, {name: new for name, (_, new) in texts.items()})
            report.facts["written"] = list(texts)

    def _policy(self, route: str, rounds: int) -> str | None:
        """Return the policy of a route; None without one, or before the rows are known."""
        examples = None if route == "codeword" else self.examples
        if route not in _CHANGES or (route != "codeword" and examples is None and not self.write):
            return None
        sample = PolicySample(simulation=True, epsilon=self.epsilon, examples=examples)
        if route == "dpsgd":
            sample = replace(sample, delta=self.delta, rounds=rounds, steps=_STEPS, rate=_RATE)
        try:
            return sample.text(_CHANGES[route])
        except ValueError as error:
            told = (
                f"DP-SGD in {quoted(rounds)} rounds (num-server-rounds) of {_STEPS} steps: {error}"
            )
            raise ConfigError(f"{self.app_dir}: {told}") from error


def _write(folder: Path, texts: dict[str, str]) -> None:
    """Write all files whole, or none: the policy if there is none, and then the others."""
    with ExitStack() as stack:
        for name in (one for one in texts if one != _POLICY):
            file = folder / name
            stream = stack.enter_context(replacing(file, mode=file.stat().st_mode & 0o777))
            stream.write(texts[name].encode())
        try:
            with open(folder / _POLICY, "xb") as stream:
                stream.write(texts[_POLICY].encode())
        except FileExistsError as error:
            told = "is there, so nothing was written"
            raise ConfigError(f"{folder / _POLICY}: {told}") from error


def _codes(folder: Path, name: str) -> list[Code]:
    """Return a module of an app's, and then all files of the app that it imports."""
    place, (module, _, app) = folder.resolve(), name.partition(":")
    if not all(map(str.isidentifier, [*module.split("."), app])):
        told = f"its pyproject.toml names {quoted(name)}, not the MODULE:NAME of an app in it"
        raise ConfigError(f"{folder}: {told}")
    files = modules_of(place, [module]).values()
    codes = [Code(place, file) for file in files if file is not None]
    if not any(code.module == module for code in codes):
        raise ConfigError(f"{folder}: has no module {module}, which its pyproject.toml names")
    return sorted(codes, key=lambda code: code.module != module)
