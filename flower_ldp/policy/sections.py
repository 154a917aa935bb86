"""The parts of a policy file: costs, totals, and the apps and extensions that an owner has read.

Apps are listed by the digest of their bundle, extensions by version and digest. A claim about one
record depends on the app's computation, which nobody sees from outside, so the guarded node accepts
it for listed bundles alone. A bundle fixes only the defaults of the run's configuration: overrides
are judged here too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, model_validator

from flower_ldp.errors import quoted
from flower_ldp.mechanisms import MECHANISMS, name_complaint
from flower_ldp.mechanisms.training_plan import MOST_ROUNDS, MOST_STEPS
from flower_ldp.privacy import CONDITIONAL_SUFFIX, Unit, as_fraction
from flower_ldp.yaml_source import Section, interval, matching, misfit

_MAX_NAME = 200
#: Other names of the same things, without what people write differently.
_OTHER_NAMES = {other: name for name, others in MECHANISMS.items() for other in others}
_NEAR = 0.8

UnitName = Literal["client", "example", "label"]
ExampleName = Literal["row", "patient"]
"""What one example of the data is: a row, or all rows of one patient."""


def _plain_name(value: str) -> str:
    if not (0 < len(value) <= _MAX_NAME and value.isprintable() and value == value.strip()):
        raise misfit(f"must be printable text of 1 to {_MAX_NAME} characters, no blanks around it")
    return value


def _own_path(value: object, info: ValidationInfo) -> Path:
    """Return a path, relative to the folder of the policy file."""
    text = str(value) if isinstance(value, (str, Path)) else ""
    if not text.strip() or text[0] == "~" or "\0" in text:
        raise misfit("must be a path as text, from / or from this file's folder (~ is not read)")
    folder = (info.context or {}).get("folder", "")
    return Path(folder, text)


def _given(value: object) -> object:
    # An empty field is more likely a slip than a wish for no limit.
    if value is None:
        raise misfit("must be filled in or left out")
    return value


def mechanism_name(value: str) -> str:
    """Return the name, or raise if it is nearly that of a mechanism.

    A misspelt name would allow nothing, and its owner would notice at the first refusal. A name
    unlike all of the package's is accepted: an app may have a mechanism of its own.
    """
    name, colon, condition = value.partition(":")
    meant = _meant(name)
    if meant in (None, name):
        return value
    raise misfit(f"must be {meant + colon + condition!r}: no mechanism is called {value!r}")


def _meant(name: str) -> str | None:
    """Return the known name that a name equals or nearly equals, or None."""
    plain = _plain(name)
    if plain in _OTHER_NAMES:
        return _OTHER_NAMES[plain]
    for known in MECHANISMS:
        rest = name.removeprefix(known)
        if rest != name and not rest[:1].isalpha():
            return known if not rest else None  # a variant with a name of its own, as laplace_2
    known_names = {_plain(one): one for one in MECHANISMS}
    near = get_close_matches(plain, known_names, n=1, cutoff=_NEAR)
    return known_names[near[0]] if near else None


def _plain(name: str) -> str:
    """Return a name without what people write differently."""
    found = "".join(c for c in name.lower() if c.isalnum())
    return found.removesuffix("release").removesuffix("strategy") or found


def _message_name(value: str) -> str:
    category, dot, action = value.partition(".")
    if category not in ("train", "evaluate", "query") or (dot and not action.isidentifier()):
        raise misfit(
            "must be 'train', 'evaluate' or 'query', or one of these and an action, as "
            "'train.forward'"
        )
    return value


Name = Annotated[str, AfterValidator(_plain_name), AfterValidator(mechanism_name)]
DataName = Annotated[
    str,
    matching("[^#/]*", "must have no '#' and no '/': parts of the data and simulated clients do"),
    AfterValidator(_plain_name),
]
MessageName = Annotated[str, AfterValidator(_message_name)]
Epsilon = Annotated[float, interval("(0, 1000000]")]
Delta = Annotated[float, interval("[0, 1)")]
NotEmpty = BeforeValidator(_given)
OwnPath = Annotated[Path, BeforeValidator(_own_path)]
#: How often something may happen.
Number = Annotated[int, interval("[1, 1000000000000]", int)]
Argument = Annotated[str, matching(r"[^\0]+", "must be text, and not empty")]
Seconds = Annotated[float, interval("(0, 86400]")]


class Cost(Section):
    """A largest or least cost of releases."""

    epsilon: Epsilon
    delta: Delta = 0.0


class Evaluations(Section):
    """Evaluations that a plan pays for: how many, and the epsilon of each per example, pure."""

    number: Annotated[int, interval(f"[1, {MOST_ROUNDS}]", int)]
    epsilon: Annotated[float, interval("[1e-4, 30]")]


class RoundsPlan(Section):
    """The owner's plan of private training, without any choice of the server.

    Parameters
    ----------
    rounds, steps : int
        Models that leave, and noisy steps of each.
    rate : float
        Probability that an example is in a step.
    noise : float
        Standard deviation of the noise over the length of a clipped gradient.
    clip : float, optional
        Length that longer gradients are scaled down to; by default each is scaled to almost 1.
    evaluations : Evaluations, optional
        Epsilon and delta cover them too.
    """

    rounds: Annotated[int, interval(f"[1, {MOST_ROUNDS}]", int)]
    steps: Annotated[int, interval(f"[1, {MOST_STEPS}]", int)]
    rate: Annotated[float, interval("[1e-9, 1]")]
    noise: Annotated[float, interval("[0.05, 10000]")]
    clip: Annotated[float | None, interval("[1e-100, 1e100]"), NotEmpty] = None
    evaluations: Annotated[Evaluations | None, NotEmpty] = None


class Allowance(Cost):
    """The largest cost of one release by one mechanism.

    Parameters
    ----------
    epsilon, delta : float
        Of the whole release: several events are added up.
    unit : {"client", "example", "label"}
        The unit of the cost: the same epsilon protects far less per example.
    post_processing : sequence of {"example", "label"}
        Finer units for which the owner declares the release post-processing: they are not charged.
        Examples include their labels.
    plan : RoundsPlan, optional
        Of ``dpsgd``: the one accepted plan, at the epsilon and delta of the allowance.
    examples : int, optional
        Of ``dpsgd`` and ``example_mean``: their number of examples here, if not the policy's.
    """

    unit: UnitName = "client"
    post_processing: Sequence[Literal["example", "label"]] = ()
    plan: Annotated[RoundsPlan | None, NotEmpty] = None
    examples: Annotated[Number | None, NotEmpty] = None

    @model_validator(mode="after")
    def _finer_units(self) -> Allowance:
        for unit in self.post_processing:
            if Unit(unit) is Unit(self.unit) or Unit(unit) not in Unit(self.unit).within:
                raise misfit("must be units finer than the release's own", "post_processing")
        return self


class Total(Cost):
    """A total that must not be exceeded."""


class Window(Total):
    """A total for every period of this length."""

    days: Annotated[float, interval("(0, 36500]")]


class Life(Total):
    """A total of all releases ever.

    Parameters
    ----------
    by : {"sums", "zcdp"}
        Whether epsilons and deltas add up, or a release also fits if zCDP allows it. Fixed by the
        account's first charge.
    release_deltas : float, optional
        By zCDP: the part of delta that the deltas of releases may add up to; by default a
        thousandth. Twice this part is not there for zCDP's own delta. Fixed by the first charge.
    """

    by: Literal["sums", "zcdp"] = "sums"
    release_deltas: Annotated[float | None, interval("[0, 0.5)"), NotEmpty] = None

    @model_validator(mode="after")
    def _deltas_for_zcdp(self) -> Life:
        if self.by == "sums" and self.release_deltas is not None:
            raise misfit("belongs to by: zcdp", "release_deltas")
        if self.by == "zcdp" and self.delta <= 0:
            raise misfit("must be above 0 for by: zcdp", "delta")
        if 2 * (self.deltas or 0.0) >= self.delta and self.by == "zcdp":
            raise misfit("must be below half of delta", "release_deltas")
        return self

    @property
    def deltas(self) -> float | None:
        """What the deltas of releases may add up to; None by sums."""
        if self.by == "sums":
            return None
        given = self.release_deltas
        return float(as_fraction(self.delta) / 1000) if given is None else given


class Budget(Section):
    """The totals of one unit. The one for life is required: only it cannot be circumvented."""

    life: Life
    run: Annotated[Total | None, NotEmpty] = None
    window: Annotated[Window | None, NotEmpty] = None


class ReleaseWindow(Section):
    """The most releases in every period of this length."""

    number: Number
    days: Annotated[float, interval("(0, 36500]")]


class Releases(Section):
    """The most releases of the data, whatever each costs."""

    life: Number = 10_000
    window: Annotated[ReleaseWindow | None, NotEmpty] = None


class AnchorPlace(Section):
    """Place of the ledger's mark: a file, or a command.

    Parameters
    ----------
    file : Path
        On another disk than the ledger. In a policy file: relative to the file's folder.
    command : sequence of str
        A program by its absolute path, and its arguments.
    """

    file: Annotated[OwnPath | None, NotEmpty] = None
    command: Annotated[Sequence[Argument] | None, NotEmpty] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> AnchorPlace:
        if (self.file is None) == (self.command is None):
            raise misfit("must name either a file or a command")
        # Found by a search path, it would be whatever the environment says.
        if self.command is not None and not (self.command and Path(self.command[0]).is_absolute()):
            raise misfit("must begin with a program by its absolute path", "command")
        return self


class AnalyzerRule(Section):
    """The analyzer that opens the reports of train messages, and nobody else.

    Parameters
    ----------
    key : str
        Its public signing key, as ``flower-ldp analyzer keygen`` prints it.
    minimum : int
        The fewest reports of a round that it may answer for.
    """

    key: Annotated[
        # For the key 0 anybody can sign.
        str,
        matching(
            r"ed25519:(?!0{64})[0-9a-f]{64}",
            "must be 'ed25519:' and 64 hexadecimal digits, as flower-ldp analyzer keygen prints",
        ),
    ]
    minimum: Number


#: A value of a run's configuration.
Value = bool | int | float | str

Digest = Annotated[
    str,
    matching(r"sha256:[0-9a-f]{64}", "must be 'sha256:' and 64 hexadecimal digits in lower case"),
]


class Override(Section):
    """Permitted overrides of one default: a few values, or an interval. 1, 1.0 and true differ.

    Parameters
    ----------
    values : sequence, optional
        The values themselves.
    integers : sequence of int, optional
        The least and the greatest integer.
    numbers : sequence of float, optional
        The least and the greatest number with a point.
    """

    values: Annotated[Sequence[Value] | None, NotEmpty] = None
    integers: Annotated[Sequence[int] | None, NotEmpty] = None
    numbers: Annotated[Sequence[float] | None, NotEmpty] = None

    @model_validator(mode="after")
    def _one_of_three(self) -> Override:
        given = [one for one in (self.values, self.integers, self.numbers) if one is not None]
        if len(given) != 1 or not given[0]:
            raise misfit("must have one of 'values', 'integers' and 'numbers', and not empty")
        for name in ("integers", "numbers"):
            ends = getattr(self, name)
            ordered = ends is None or (
                len(ends) == 2 and all(map(math.isfinite, ends)) and ends[0] <= ends[1]
            )
            if not ordered:
                raise misfit("must be the least and the greatest", name)
        return self

    def allows(self, value: object) -> bool:
        """Return whether a run may have this value."""
        if self.values is not None:
            return any(type(one) is type(value) and one == value for one in self.values)
        kind, ends = (float, self.numbers) if self.integers is None else (int, self.integers)
        # nan is in no interval
        return ends is not None and type(value) is kind and ends[0] <= value <= ends[1]


class App(Section):
    """One bundle that the owner has read.

    Parameters
    ----------
    releases : sequence of str
        Mechanisms whose claims may depend on this app: those about an example or a label, and those
        declared post-processing.
    run_config : mapping of str to Override
        Permitted overrides of the bundle's defaults, and no others.
    environment : str, optional
        Digest of the node's environment in which the app was judged.
    """

    releases: Sequence[Name] = ()
    run_config: Mapping[str, Override] = {}
    environment: Annotated[Digest | None, NotEmpty] = None

    def misfit(self, overrides: Mapping[str, object]) -> str | None:
        """Return why a run's configuration is not allowed, or None."""
        for key, value in overrides.items():
            allowed = next((one for name, one in self.run_config.items() if name == key), None)
            if allowed is None:
                return f"the run may not set {quoted(key)}"
            if not allowed.allows(value):
                kind = type(value).__name__
                return f"the run may not set {quoted(key)} to {quoted(str(value))} ({kind})"
        return None

    def may_release(self, mechanism: str) -> bool:
        """Return whether a claim under this name may depend on the app."""
        return mechanism in self.releases

    def may_embed(self, mechanism: str) -> bool:
        """Return whether embeddings by this mechanism may, with a condition or without."""
        return any(one in self.releases for one in (mechanism, mechanism + CONDITIONAL_SUFFIX))

    def may_learn(self, *, gradients: bool) -> bool:
        """Return whether a bottom may be trained on the records: by gradients only conditionally.

        Parameters
        ----------
        gradients : bool
            Whether by what the server sends after each step.
        """
        conditional = any(one.endswith(CONDITIONAL_SUFFIX) for one in self.releases)
        return conditional or (not gradients and "bottom_training" in self.releases)


def _extension_name(value: str) -> str:
    complaint = name_complaint(value)
    if complaint is not None:
        raise misfit(complaint)
    return mechanism_name(value)  # a near miss would be read as the package's own


ExtensionName = Annotated[str, AfterValidator(_extension_name)]


class ExtensionEntry(Cost):
    """One extension that the owner has read.

    Parameters
    ----------
    distribution, version : str
        What is installed, exactly.
    digest : str
        As ``flower-ldp extension digest`` prints it.
    epsilon, delta : float
        The least that a report is charged. A server that proposes more is charged for that.
    """

    distribution: Annotated[
        str,
        matching("[a-z0-9]+(-[a-z0-9]+)*", "must be a distribution's normal name, as one-bit-ldp"),
    ]
    version: Annotated[
        str, matching("[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}", "must be one version, as '0.1.0'")
    ]
    digest: Digest
