"""The few lines of a policy that allow one route and nothing else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.app_digests import bundle_of, read_bundle
from flower_ldp.cli.output import wrong
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
class RoutePolicy:
    """The options of ``flower-ldp policy sample --for``, which explains them."""

    route: Route
    epsilon: float
    delta: float | None
    answers: int
    examples: int | None
    plan: tuple[int | None, int | None, float | None]
    app: Path | None
    simulation: bool
    example: ExampleName = "row"

    def text(self) -> str:
        """Return the policy, after a check of it as a file."""
        message, mechanism, unit, usual = _ROUTES[self.route]
        delta = usual if self.delta is None else self.delta
        if unit == "example" and self.examples is None:
            needs = "needs how many rows or patients there are, a public number"
            raise wrong("--examples", f"{self.route} {needs}")
        if self.route == "dpsgd" and not 0 < delta * self.answers * (self.examples or 0) < 1:
            times = "" if self.answers == 1 else f" times {self.answers:,} answers"
            needed = "dpsgd needs one above 0 and, over all answers, below 1 / examples"
            raise wrong("--delta", f"{needed}, got {delta:g}{times}")
        if self.app is not None and unit == "client":
            raise wrong("--app", f"{self.route} protects a whole client, whatever its app computes")
        cost = {"epsilon": float(self.epsilon), **({"delta": float(delta)} if delta else {})}
        total = {name: float(as_fraction(one) * self.answers) for name, one in cost.items()}
        allowance: dict[str, Any] = {**cost, **({} if unit == "client" else {"unit": unit})}
        if plan := self._plan(cost):
            allowance["plan"] = plan
        times = "once" if self.answers == 1 else f"{self.answers:,} times"
        lines = [
            f"# Allows {self.route} alone, {times}. docs/policy.md explains each field.",
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

    def _plan(self, cost: dict[str, float]) -> dict[str, float] | None:
        """Return the plan of private training with the least noise that the cost allows."""
        if self.plan == (None, None, None):
            return None
        rounds, steps, rate = self.plan
        if self.route != "dpsgd" or rounds is None or steps is None or rate is None:
            raise wrong("--rounds", "a plan is for dpsgd, with --rounds, --steps and --rate")
        noise = noise_multiplier(*cost.values(), sample_rate=rate, steps=rounds * steps)
        return {"rounds": rounds, "steps": steps, "rate": rate, "noise": rounded_up(noise, 4)}
