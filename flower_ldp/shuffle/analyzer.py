"""The analyzer: one key of a run at a time, and one answer for each key, in memory alone.

A batch that comes again, in any order, gets the answer that was stored before it was returned;
another batch for that key is refused. So a server cannot compare the sums of two batches that
differ in one client. A refused batch leaves nothing behind: refusals tell no report.

**Keys** are dropped before their answer leaves, by the run's next key, after ``days`` and with the
process. No file has them, so no copy of one answers a round twice, or opens one that was answered.
A process that ends costs the rounds under way.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flower_ldp.accounting.ledger.charges import check_run
from flower_ldp.parameter_bounds import check_in
from flower_ldp.shuffle.batch import (
    OTHER_BATCH,
    UNKNOWN_KEY,
    AnalyzerRefusal,
    Batch,
    ReportSums,
    SealedProposal,
    add_up,
)
from flower_ldp.shuffle.sealing import RoundKey, new_key, signer_of, suite

_DAY = 86_400.0


@dataclass
class _Round:
    key: RoundKey
    #: Private half of the key; None once it is answered.
    secret: bytes | None
    #: Seconds, by the analyzer's clock.
    made: float
    #: Of the batch that was answered, in any order.
    digest: bytes = b""
    answer: ReportSums | None = None
    #: Held while a batch is added up, which may take a minute.
    lock: threading.Lock = field(default_factory=threading.Lock)


class ReportAnalyzer:
    """An analyzer in this process.

    In a simulation a strategy takes it as it is. For a federation ``flower-ldp analyzer serve``
    runs it, and the strategy takes an :class:`~flower_ldp.shuffle.Analyzer`.

    Parameters
    ----------
    minimum : int
        The fewest reports of a round that it answers for; in [1, 2^32].
    signing : bytes, optional
        Private signing key, 32 bytes; by default a new one.
    delta : float
        Of the claims; in (0, 1).
    days : float
        After which a key and its answer are erased; in (0, 3650].
    clock : callable
        Returns seconds, from any moment; no setting of the system's clock moves it.

    Raises
    ------
    ModuleNotFoundError
        Without the extra ``shuffle``.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Codeword
    >>> from flower_ldp.strategies import CodewordStrategy
    >>> strategy = CodewordStrategy(Codeword(epsilon=4.0), analyzer=ReportAnalyzer(minimum=2_000))
    """

    def __init__(
        self,
        minimum: int,
        *,
        signing: bytes | None = None,
        delta: float = 1e-6,
        days: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        suite()
        check_in("[1, 2^32]", "minimum", minimum, int)
        check_in("(0, 1)", "delta", delta)
        check_in("(0, 3650]", "days", days)
        self._signing = os.urandom(32) if signing is None else signing
        self.signer = signer_of(self._signing)
        self.minimum, self.delta = minimum, delta
        self._seconds, self._clock = days * _DAY, clock
        self._lock = threading.Lock()
        #: By run.
        self._rounds: dict[int, _Round] = {}

    def new_key(self, run_id: int) -> RoundKey:
        """Return a run's new key, for its next round, and erase that of the round before.

        ValueError for no run's number.
        """
        check_run(run_id)
        key, secret = new_key(self._signing, run_id, self.minimum)
        with self._lock:
            self._rounds[run_id] = _Round(key, secret, self._clock())
        return key

    def sums(self, batch: Batch) -> ReportSums:
        """Return the sums of a round's reports, the stored ones if it was answered before.

        Raises
        ------
        AnalyzerRefusal
            ``"proposal"`` if the batch states none of codewords. ``"key"`` if its key is unknown or
            erased. ``"round"`` if the key was used for another batch. ``"minimum"`` if fewer
            reports are left than the key says.
        """
        asked = SealedProposal.parse(batch.proposal)
        digest, run_id = batch.digest(), asked.key.run_id
        self.erase_old()
        with self._lock:
            found = self._rounds.get(run_id)
        if found is None or found.key != asked.key:
            told = f"this key of run {run_id} is not here: it was erased, or never made"
            raise AnalyzerRefusal(UNKNOWN_KEY, told)
        with found.lock:
            if found.secret is not None:
                found.answer = add_up(batch, asked, found.secret, self.delta)
                found.digest, found.secret = digest, None
            if found.answer is None or found.digest != digest:
                told = f"this key of run {run_id} was used for another batch"
                raise AnalyzerRefusal(OTHER_BATCH, told)
            return found.answer

    def erase_old(self) -> None:
        """Erase the rounds that are older than the days.

        Each batch does this first; a service does it without requests too.
        """
        with self._lock:
            oldest = self._clock() - self._seconds
            self._rounds = {run: one for run, one in self._rounds.items() if one.made >= oldest}
