"""A run from one file: strategy, client mods and number of rounds, with every key in force."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_ldp.clients import LdpMod, ProtectedEvalRelease, Rehearsal, UpdateRelease
from flower_ldp.config.encrypt import TrainConfig, load_config
from flower_ldp.strategies import ClientPool, ProtectedEvalStrategy
from flower_ldp.strategies.training import TrainingOptions


@dataclass(frozen=True)
class ConfiguredRun:
    """What a file of training and evaluation means to Flower; :func:`from_config` makes it.

    Parameters
    ----------
    config : TrainConfig
        The values of the file.
    """

    config: TrainConfig

    @property
    def rounds(self) -> int | None:
        """Number of rounds, as ``fl_iteration_num`` or a plan of steps has it; else None."""
        section = self.config.encrypt.training()
        planned = None if section is None else section.planned_rounds()
        return self.config.fl_iteration_num or planned

    def training(self, **options: Unpack[TrainingOptions]) -> Strategy:
        """Return the strategy that trains, with fresh state; FedAvg for ``NOT_ENCRYPT``.

        Parameters
        ----------
        **options
            As in :class:`~flower_ldp.strategies.training.TrainingStrategy`, but what the file
            has: ``health``, ``trainable``, ``subspace``. For ``NOT_ENCRYPT`` as in FedAvg.

        Raises
        ------
        TypeError
            If an option stands in the file too.
        """
        encrypt = self.config.encrypt
        section = encrypt.training()
        if encrypt.encrypt_train_type == "NOT_ENCRYPT" or section is None:
            plain: Any = options
            return FedAvg(**plain)
        here: Any = {
            "health": encrypt.health(),
            "trainable": section.trainable,
            "subspace": section.public_subspace(),
        }
        twice = [name for name, value in here.items() if value is not None and name in options]
        if twice:
            raise TypeError(f"{twice[0]} is given by the configuration file: leave it out here")
        return section.strategy(**{**here, **options})

    def strategy(
        self, *, classes: int | None = None, **options: Unpack[TrainingOptions]
    ) -> Strategy:
        """Return training and, for ``privacy_eval_type: LAPLACE``, protected evaluation.

        Parameters
        ----------
        classes : int, optional
            Probabilities in a row that clients predict; for ``LAPLACE`` only.
        **options
            As in :meth:`training`. A :class:`~flower_ldp.strategies.ClientPool` counts the answers
            to both.

        Raises
        ------
        TypeError
            If an option stands in the file too, or ``classes`` is missing or too much.
        """
        encrypt, training = self.config.encrypt, self.training(**options)
        if (encrypt.privacy_eval_type == "LAPLACE") != (classes is not None):
            raise TypeError(
                "classes= is for privacy_eval_type LAPLACE, and only there; the file says "
                f"{encrypt.privacy_eval_type}, got classes={classes}"
            )
        if classes is None:
            return training
        answers = options.get("answers_per_client")
        return ProtectedEvalStrategy(
            training,
            encrypt.laplace_eval.mechanism(classes),
            score=self.config.unsupervised.eval_type,
            metrics=encrypt.laplace_eval.metric_mechanisms(),
            cluster_client_num=self.config.unsupervised.cluster_client_num,
            health=encrypt.health(),
            answers_per_client=answers if isinstance(answers, ClientPool) else None,
        )

    def client_mods(self, rehearsal: Rehearsal | None = None) -> list[Mod]:
        """Return the mods of the ClientApp: the gate, or none where the file protects nothing.

        The gate refuses what the file leaves unprotected beside what it protects.

        Parameters
        ----------
        rehearsal : Rehearsal, optional
            The app's work on public sample data.
        """
        encrypt = self.config.encrypt
        trains = encrypt.encrypt_train_type != "NOT_ENCRYPT"
        section = encrypt.training() if trains else None
        evaluates = encrypt.privacy_eval_type == "LAPLACE"
        if section is None and not evaluates:
            return []
        return [
            LdpMod(
                train=None if section is None else UpdateRelease(trainable=section.trainable),
                evaluate=ProtectedEvalRelease() if evaluates else None,
                rehearsal=rehearsal,
            )
        ]


def from_config(path: str | Path) -> ConfiguredRun:
    """Read a YAML file of training and evaluation; raises as :func:`load_config` does.

    Examples
    --------
    >>> run = from_config("configs/signds.yaml")  # doctest: +SKIP
    >>> strategy, mods = run.strategy(fraction_train=0.5), run.client_mods()  # doctest: +SKIP
    """
    return ConfiguredRun(load_config(path))
