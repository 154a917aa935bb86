"""The answer of ``flower-ldp explain mindspore``: an ``encrypt`` section as MindSpore runs it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from flower_ldp.advice.present import mindspore_dp
from flower_ldp.cli.explain_answers import tell_noise
from flower_ldp.cli.output import Report, number
from flower_ldp.config import EncryptConfig, load_config
from flower_ldp.mechanisms.laplace import NoProtectionWarning
from flower_ldp.privacy import PrivacySpent, Unit, meaning

#: What the client passes on as it is in DP_ENCRYPT.
_RAW = (
    "the number of examples, which leaves as it is, and an update of zeros, at which the client "
    "sends no model"
)


def answer(file: Path, rounds: int, report: Report) -> None:
    """Answer for a file with an ``encrypt`` section.

    Raises
    ------
    ConfigError
        If the file is no such file.
    """
    with warnings.catch_warnings():  # what protects nothing is said below
        warnings.simplefilter("ignore", NoProtectionWarning)
        chosen = load_config(file).encrypt
    report.facts.update(
        software="MindSpore Federated",
        encrypt_train_type=chosen.encrypt_train_type,
        privacy_eval_type=chosen.privacy_eval_type,
        rounds=rounds,
    )
    report.line(f"{file}: {chosen.encrypt_train_type}, as MindSpore Federated runs it")
    TRAINING[chosen.encrypt_train_type](chosen, rounds, report)
    if chosen.privacy_eval_type == "LAPLACE":
        _evaluation(chosen, rounds, report)


def _dp_encrypt(chosen: EncryptConfig, rounds: int, report: Report) -> None:
    dp = chosen.dp_encrypt
    if dp is None:
        raise ValueError("a file of DP_ENCRYPT has its section")
    noise = mindspore_dp(dp.dp_norm_clip, dp.dp_eps, dp.dp_delta)
    report.facts["parameters"] = dp.model_dump(include={"dp_eps", "dp_delta", "dp_norm_clip"})
    made = "exact for updates one clip apart"
    report.pairs(
        [
            ("stated", f"epsilon {dp.dp_eps:g}, delta {dp.dp_delta:g}"),
            ("noise of each entry", f"deviation {number(noise.deviation)}, {made}"),
        ]
    )
    tell_noise(noise, dp.dp_eps, dp.dp_delta, rounds, report)
    report.line("Covers: the weights of one message.")
    report.line(f"Not covered: {_RAW}.")
    report.facts["not_covered"] = _RAW


def _signds(chosen: EncryptConfig, rounds: int, report: Report) -> None:
    epsilon = chosen.signds.sign_eps
    total = PrivacySpent(Unit.CLIENT, epsilon * rounds)
    report.facts.update(
        parameters={"sign_eps": epsilon},
        epsilon={
            "unit": Unit.CLIENT.value,
            "relation": Unit.CLIENT.relation,
            "stated": epsilon,
            "round": epsilon,
            "total": total.epsilon,
        },
        meaning={"total": meaning(total)},
    )
    report.pairs(
        [
            ("epsilon a round", f"{epsilon:g} per client, pure, of the selection: as stated"),
            ("   in all", f"{total.epsilon:g} after {rounds:,} rounds, a sum"),
        ]
    )
    report.warn(
        "the magnitude bit (MagRR) leaves in the same report, and the file does not name its "
        f"epsilon: if it is {epsilon:g} too, a round costs twice as much"
    )
    report.line(f"In all: {meaning(total)}")


def _codeword(chosen: EncryptConfig, rounds: int, report: Report) -> None:
    report.problem(
        "CODEWORD is this package's own, and no setting of MindSpore's: see config check"
    )


def _nothing(chosen: EncryptConfig, rounds: int, report: Report) -> None:
    report.facts["epsilon"] = None
    report.line("Training: the models leave as they are. There is no epsilon.")


#: What is said of training, by its type.
TRAINING: Mapping[str, Callable[[EncryptConfig, int, Report], None]] = MappingProxyType(
    {
        "SIGNDS": _signds,
        "DP_ENCRYPT": _dp_encrypt,
        "CODEWORD": _codeword,
        "NOT_ENCRYPT": _nothing,
    }
)


def _evaluation(chosen: EncryptConfig, rounds: int, report: Report) -> None:
    stated, rows = chosen.laplace_eval.laplace_eval_eps, chosen.laplace_eval.rows
    true = chosen.laplace_eval.epsilon
    total = PrivacySpent(Unit.CLIENT, true * rows * rounds)
    report.facts["evaluation"] = {
        "stated": stated,
        "row": true,
        "round": true * rows,
        "total": total.epsilon,
        "meaning": meaning(total),
    }
    report.line()
    report.line("Evaluation: LAPLACE")
    report.pairs(
        [
            ("stated", f"epsilon {stated:,.15g} = 1 / the noise's scale"),
            ("distance", "2: two rows of probabilities may be so far apart, in sums of changes"),
            ("true epsilon", f"{true:,.15g} per row and client, pure: twice what is stated"),
            ("   in all", f"{total.epsilon:,.15g} for {rows:,} rows in {rounds:,} evaluations"),
        ]
    )
    report.line(f"In all: {meaning(total)}")
