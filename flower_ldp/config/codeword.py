"""The ``codeword`` section: one codeword a report, and the server's steps."""

from __future__ import annotations

from typing import Annotated

from flower_ldp.config.part import Patterns, SubspaceConfig
from flower_ldp.config.server_optimizer import OptimizerConfig
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.subspace import Subspace
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.strategies import AgreedLength, ServerOptimizer
from flower_ldp.yaml_source import Section, interval


class CodewordConfig(Section):
    """The ``codeword`` section; used if ``encrypt_train_type`` is ``CODEWORD``.

    Parameters
    ----------
    codeword_eps : float
        Epsilon of a report, per round and client.
    codeword_favoured : int
        K, how many codewords are favoured; 0 to choose it by what a report is then worth.
    codeword_rotations : int
        How many codes the reports of a round are spread over.
    codeword_blocks : int
        Parts of the update with rows of their own.
    codeword_server_optimizer : mapping, optional
        ``kind`` is ``momentum``, ``fixed_length``, ``agreed_length`` (the default), ``adam``,
        ``yogi`` or ``adagrad``; and the fields of that kind.
    trainable : str or list of str, optional
        Names or patterns of the arrays that are trained; all by default.
    subspace : mapping, optional
        ``dimension`` and ``seed`` of the public subspace that the run moves in.
    """

    codeword_eps: Annotated[float, interval("[1e-12, 100]")]
    codeword_favoured: Annotated[int, interval("[0, 16777216]", int)] = 0
    codeword_rotations: Annotated[int, interval("[1, 4096]", int)] = 64
    codeword_blocks: Annotated[int, interval("[1, 65536]", int)] = 1
    codeword_server_optimizer: OptimizerConfig | None = None
    trainable: Patterns | None = None
    subspace: SubspaceConfig | None = None

    def mechanism(self) -> Codeword:
        """Return the mechanism, for :class:`~flower_ldp.strategies.CodewordStrategy`."""
        return Codeword(
            self.codeword_eps,
            self.codeword_favoured,
            self.codeword_rotations,
            blocks=self.codeword_blocks,
        )

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return epsilon of the report."""
        return self.mechanism().events()

    def server_optimizer(self) -> ServerOptimizer:
        """Return the server optimizer with fresh state."""
        chosen = self.codeword_server_optimizer
        return AgreedLength() if chosen is None else chosen.build()

    def public_subspace(self) -> Subspace | None:
        """Return the subspace, for a strategy's ``subspace=``; None if there is none."""
        return None if self.subspace is None else self.subspace.build()
