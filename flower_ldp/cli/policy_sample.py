"""``flower-ldp policy sample``: every field, or the few lines that allow one route alone."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import typer
from click.core import ParameterSource

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.app_digests import bundle_of, read_bundle
from flower_ldp.cli.output import Report, wrong
from flower_ldp.mechanisms.training_plan import MOST_ROUNDS, MOST_STEPS, total_steps
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.policy.files import FORMAT
from flower_ldp.policy.sections import ExampleName
from flower_ldp.privacy import as_fraction, rounded_up
from flower_ldp.yaml_source import in_one_line

Route = Literal["codeword", "signds", "gaussian", "dpsgd", "labels", "laplace", "counts"]
#: The message, mechanism, unit and usual delta of each route.
_ROUTES: dict[str, tuple[str, str, str, float]] = {
    "codeword": ("train", "codeword", "client", 0.0),
    "signds": ("train", "signds", "client", 0.0),
    "gaussian": ("train", "gaussian", "client", 1e-5),
    "dpsgd": ("train", "dpsgd", "example", 1e-5),
    "labels": ("train", "kary_response", "label", 0.0),
    "laplace": ("evaluate", "laplace", "client", 0.0),
    "counts": ("query", "counts", "example", 0.0),
}


def refuse_options_of_a_route() -> None:
    """Raise the error of the first given option that changes nothing without ``--for``."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in ("simulation", "as_json"):
            raise wrong(
                option.opts[0], "it is for the policy of one route: name the route by --for"
            )


@dataclass(frozen=True)
class PolicySample:
    """Print a policy to start from: one with every field, or the one that a route needs.

    Parameters
    ----------
    simulation
        For simulated clients, whose data is not real.
    route
        Route of the app at hand: print the few lines that allow it and nothing else.
    epsilon
        With --for: of one answer, or of a whole DP-SGD plan.
    delta
        With --for: the same. By default 1e-5 for gaussian and dpsgd, which need one, else 0.
    answers
        With --for: how many answers, or plans, the data gives in its life.
    examples
        With --for: how many rows or patients there are, which dpsgd needs.
    example
        With --for: what an example is; the app says whose each row is.
    rounds
        With --for dpsgd: of the plan that the server must keep to; by default the server proposes.
    steps
        With --rounds: noisy steps of a round.
    rate
        With --rounds: probability that a row takes part in a step.
    app
        With --for dpsgd or labels: app's folder or bundle (.fab) that you have read, for the
        guarded node.
    """

    simulation: bool = False
    route: Annotated[Route | None, typer.Option("--for")] = None
    epsilon: Annotated[float, Bounded("(0, 1000000]")] = 8.0
    delta: Annotated[float | None, Bounded("[0, 1)")] = None
    answers: Annotated[int, Bounded("[1, 1000000]")] = 1
    examples: Annotated[int | None, Bounded("[1, 1000000000000]")] = None
    example: ExampleName = "row"
    rounds: Annotated[int | None, Bounded(f"[1, {MOST_ROUNDS}]")] = None
    steps: Annotated[int | None, Bounded(f"[1, {MOST_STEPS}]")] = None
    rate: Annotated[float | None, Bounded("[1e-9, 1]")] = None
    app: Annotated[Path | None, typer.Option("--app", metavar="APP")] = None

    def answer(self, report: Report) -> None:
        """Print the policy."""
        if self.route is None:
            refuse_options_of_a_route()
            name = "simulation_policy.yaml" if self.simulation else "client_policy.yaml"
            text = files("flower_ldp.cli").joinpath("samples", name).read_text(encoding="utf-8")
        else:
            name, text = f"{self.route}.yaml", self.text(self.route)
        report.line(text.rstrip("\n"), name=name, text=text)

    def text(self, route: Route) -> str:
        """Return the policy of a route, after a check of it as a file."""
        message, mechanism, unit, usual = _ROUTES[route]
        delta = usual if self.delta is None else self.delta
        if unit == "example" and self.examples is None:
            needs = "needs how many rows or patients there are, a public number"
            raise wrong("--examples", f"{route} {needs}")
        if route == "dpsgd" and not 0 < delta * self.answers * (self.examples or 0) < 1:
            times = "" if self.answers == 1 else f" times {self.answers:,} answers"
            needed = "dpsgd needs one above 0 and, over all answers, below 1 / examples"
            raise wrong("--delta", f"{needed}, got {delta:g}{times}")
        if self.app is not None and unit == "client":
            raise wrong("--app", f"{route} protects a whole client, whatever its app computes")
        cost = {"epsilon": float(self.epsilon), **({"delta": float(delta)} if delta else {})}
        total = {name: float(as_fraction(one) * self.answers) for name, one in cost.items()}
        allowance: dict[str, Any] = {**cost, **({} if unit == "client" else {"unit": unit})}
        if plan := self._plan(route, cost):
            allowance["plan"] = plan
        times = "once" if self.answers == 1 else f"{self.answers:,} times"
        lines = [
            f"# Allows {route} alone, {times}. docs/policy.md explains each field.",
            "# data_id is your name for the data, for ever. A guarded node takes deployment alone.",
            "data_id: CHANGE-ME",
            "ledger: ledger.sqlite",
            f"mode: {'simulation' if self.simulation else 'deployment'}",
            f"messages: {in_one_line({message: {mechanism: allowance}})}",
            f"budgets: {in_one_line({unit: {'life': total}})}",
            *([] if self.example == "row" else [f"example: {self.example}"]),
            *([] if self.examples is None else [f"examples: {self.examples}"]),
        ]
        if self.app is not None:
            bundle = read_bundle(bundle_of(self.app))
            name = f"{bundle.app} {bundle.version}"
            lines += [
                f"# {name}, which you have read. The guarded node runs no other.",
                f"apps: {in_one_line({bundle.digest: {'releases': [mechanism]}})}",
                "unlisted_apps: refuse",
            ]
        text = "\n".join(lines) + "\n"
        FORMAT.parse(text, source="the policy that these options make")
        return text

    def _plan(self, route: Route, cost: dict[str, float]) -> dict[str, float] | None:
        """Return the plan of private training with the least noise that the cost allows."""
        rounds, steps, rate = self.rounds, self.steps, self.rate
        if (rounds, steps, rate) == (None, None, None):
            return None
        if route != "dpsgd" or rounds is None or steps is None or rate is None:
            raise wrong("--rounds", "a plan is for dpsgd, with --rounds, --steps and --rate")
        noise = noise_multiplier(*cost.values(), sample_rate=rate, steps=total_steps(rounds, steps))
        return {"rounds": rounds, "steps": steps, "rate": rate, "noise": rounded_up(noise, 4)}
