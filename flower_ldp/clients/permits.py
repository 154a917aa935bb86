"""What the gate holds of a request that the owner admitted: how to answer it, and its receipt."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from flwr.app import Context

from flower_ldp.accounting.ledger import Ledger, Receipt
from flower_ldp.clients.admission import ReleaseRequest
from flower_ldp.clients.calling import cause_of
from flower_ldp.clients.charging import examples_of
from flower_ldp.clients.dpsgd.ends import run_marks
from flower_ldp.clients.node_policy import account_of, ledger_of
from flower_ldp.errors import LedgerError
from flower_ldp.own_log import say
from flower_ldp.policy import Policy

_log = logging.getLogger("flower_ldp")


@dataclass(frozen=True)
class OwnerHandling:
    """What the owner's policy says about answers to one type of message.

    Parameters
    ----------
    policy : Policy
        It names the ledger.
    account : str
        Where failures are counted.
    message_type : str
        As ``"train"``.
    """

    policy: Policy
    account: str
    message_type: str

    @property
    def is_simulation(self) -> bool:
        """Whether neither data nor budget is real."""
        return self.policy.is_simulation

    @property
    def answer_after(self) -> float | None:
        """The policy's fixed moment for this type of message, in seconds."""
        return self.policy.answer_after.get(self.message_type)

    def failed(self) -> None:
        """Count a failure of the app in the ledger; where that cannot be, the log says so."""
        try:
            with ledger_of(self.policy) as ledger:
                ledger.count(self.account, "failed")
        except Exception as error:
            say(
                _log,
                logging.ERROR,
                "a failure of the app could not be counted: %s",
                cause_of(error),
            )


@dataclass(frozen=True)
class LedgerPermit:
    """A release that the ledger has charged.

    Parameters
    ----------
    handling : OwnerHandling
        What the policy says about the answer.
    receipt : Receipt
        Proof of the charge, with the report of an earlier delivery if there was one.
    ledger : Ledger, optional
        Open, for the report; without it the policy's is opened.
    examples : int, optional
        How many examples the release is about, by the policy.
    marks : tuple of two bytes of one length
        What a report begins with, and what one does that is sealed for an app that failed. After
        the second none is sealed to the same part of the data; if it is empty, any is.
    """

    handling: OwnerHandling
    receipt: Receipt
    ledger: Ledger | None = None
    examples: int | None = None
    marks: tuple[bytes, bytes] = (b"", b"")

    @property
    def stored(self) -> bytes | None:
        """The report that this message got before."""
        report = self.receipt.report
        if report is None or not report.startswith(self.marks):
            return report  # as older versions sealed it
        return report[len(self.marks[0]) :]

    @property
    def is_simulation(self) -> bool:
        """Whether neither data nor budget is real."""
        return self.handling.is_simulation

    @property
    def answer_after(self) -> float | None:
        """The policy's fixed moment for this type of message, in seconds."""
        return self.handling.answer_after

    @property
    def example(self) -> str:
        """What one example is, by the policy."""
        return self.handling.policy.example

    def failed(self) -> None:
        """Count a failure of the app."""
        self.handling.failed()

    def seal(self, report: bytes) -> None:
        """Store the report; when this returns it is on disk.

        Raises
        ------
        LedgerError
            If it cannot be stored. The report must not leave.
        BudgetExhausted
            If the last report was sealed meanwhile. The report must not leave.
        """
        self._seal(self.marks[0] + report)

    def seal_last(self, report: bytes) -> None:
        """Store a report for an app that failed, after which none is stored.

        Raises
        ------
        LedgerError, BudgetExhausted
            As :meth:`seal`.
        """
        self._seal(self.marks[1] + report)

    def _seal(self, report: bytes) -> None:
        kept = self.ledger  # opening it is a third of what a message costs
        if kept is not None and not kept.closed:
            try:
                # Closed before it is opened again, which may get the same descriptor.
                with kept as ledger:
                    ledger.look_again()  # the app took its time
                    ledger.seal(self.receipt, report, last=self.marks[1])
                return
            except (LedgerError, ValueError) as error:
                # The app may have closed all files, or have come back in another process, and
                # that must not be seen. What is wrong with the file itself is wrong again below.
                say(_log, logging.DEBUG, "the ledger is opened again for the report: %s", error)
        with ledger_of(self.handling.policy) as ledger:
            ledger.seal(self.receipt, report, last=self.marks[1])

    def close(self) -> None:
        """Close the ledger."""
        if self.ledger is not None:
            self.ledger.close()


def permit_of(
    policy: Policy,
    receipt: Receipt,
    request: ReleaseRequest,
    context: Context,
    ledger: Ledger | None = None,
    last: bytes = b"",
) -> LedgerPermit:
    """Return the permit of a request that was charged.

    ``last`` is what the last report of a plan begins with. A release about the owner's examples is
    sealed with the marks of its run.
    """
    marks = run_marks(request.run_id) if request.per_example else (b"", last)
    handling = OwnerHandling(policy, account_of(policy, context), request.message_type)
    return LedgerPermit(handling, receipt, ledger, examples_of(policy, request), marks)
