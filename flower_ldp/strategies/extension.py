"""Training from the reports of an extension, as a Flower strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.extensions.contract import Chosen, ExtensionMechanism
from flower_ldp.privacy import Unit, compose
from flower_ldp.strategies.rounds import Metrics
from flower_ldp.strategies.training import TrainingStrategy
from flower_ldp.wire.extension import ExtensionReport
from flower_ldp.wire.proposal import UpdateProposal


class ExtensionTally:
    """One round of an extension: what is asked, and the sum of what the reports say.

    Parameters
    ----------
    proposal : UpdateProposal
        What clients are asked for.
    mechanism : ExtensionMechanism
        For d entries.
    dimension : int
        d.
    """

    def __init__(
        self,
        proposal: UpdateProposal[ExtensionReport],
        mechanism: ExtensionMechanism,
        dimension: int,
    ) -> None:
        self.proposal = proposal
        self._mechanism = mechanism
        self._total = np.zeros(dimension, dtype=np.float64)

    def decode(self, payload: bytes) -> NDArray[np.floating[Any]]:
        """Return what a report says of the update.

        Raises
        ------
        WireError
            If the extension cannot read it, or says what is no finite update.
        """
        try:
            found = np.asarray(self._mechanism.estimate(self.proposal.mechanism.decode(payload, 0)))
        except (ValueError, TypeError, OverflowError) as error:
            raise WireError("report", str(error)) from error
        if found.shape != self._total.shape or not np.isfinite(found).all():
            raise WireError("report", f"the extension's estimate has shape {found.shape}")
        return found

    def add(self, report: NDArray[np.floating[Any]]) -> None:
        """Take in what a report says."""
        self._total += report

    def close(self, reports: int) -> Metrics:
        """Return no metrics: nothing is known of the reports."""
        return {}

    def summed(self) -> NDArray[np.float64]:
        """Return the sum of what the reports say."""
        return self._total

    def step(self, reports: int) -> NDArray[np.float64]:
        """Return the mean of what the reports say."""
        return self._total / reports


class ExtensionStrategy(TrainingStrategy[Chosen]):
    """Federated training from the reports of a mechanism that is not of this package.

    An ordinary Flower strategy: sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.
    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.ExtensionRelease`, and their owners' policies allow the extension.
    The model moves by the mean of what the reports say. The guarantee is a claim of the extension's
    author; a client's ledger may charge more than is stated here, where its owner says so.

    Parameters
    ----------
    mechanism : Chosen
        The extension with the parameters of the run (:meth:`Extension.chosen
        <flower_ldp.extensions.Extension.chosen>`).
    server_optimizer, health, answers_per_client, trainable, subspace
        As in :class:`~flower_ldp.strategies.GaussianStrategy`.
    fraction_train, min_train_nodes, min_available_nodes, arrayrecord_key, configrecord_key
        As in FedAvg.
    fraction_evaluate, min_evaluate_nodes, evaluate_metrics_aggr_fn
        As in FedAvg, except that the fraction is 0 by default: metrics that clients send
        raw are a leak, and the gate refuses them. Use ``evaluate_fn`` on the server.

    Raises
    ------
    TypeError
        If the mechanism, the health or the part is of another type.
    """

    _mechanism_type = Chosen
    _mechanism_example = "an extension's parameters, as extension.chosen(epsilon=1.0)"

    def _tally(self, dimension: int, participation: float) -> ExtensionTally:
        made = self.mechanism.mechanism(dimension)
        setting = self.mechanism.setting
        report = ExtensionReport(
            self.mechanism.extension.name,
            setting.epsilon,
            setting.delta,
            made.report_bytes,
            setting.options,
        )
        return ExtensionTally(UpdateProposal(report, self._health.epsilon), made, dimension)

    def _description(self) -> Iterator[str]:
        """Yield whose claim it is, and what it costs."""
        event = self.mechanism.event()
        spent = compose([event])[Unit.CLIENT]
        yield f"\t├──> {event.mechanism}, an extension: its guarantee is its author's claim"
        yield f"\t│\t├──Cost of a round, as claimed: {spent}"
        if self.server_optimizer is not None:
            yield f"\t│\t└──Server optimizer: {self.server_optimizer.describe()}"
