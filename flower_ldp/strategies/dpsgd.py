"""Flower's strategies over clients that train by DP-SGD."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic, QFedAvg, Strategy
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import Verdict
from flower_ldp.mechanisms.training_outlook import TrainingOutlook, outputs
from flower_ldp.parameter_bounds import check_in, must_be
from flower_ldp.privacy import PrivacySpent, Unit, meaning
from flower_ldp.strategies.deadlines import StrategyWithDeadlines
from flower_ldp.strategies.replies import Metrics, OnceLogger, ReplyValidator, raise_if_unproductive
from flower_ldp.wire.training_plan import read_plan

_log = logging.getLogger("flwr")
#: Bytes that an array's form takes beside its entries.
_MOST_HEADER = 4_096
#: A share with noise of scale 1, which is as wide as all shares, is this far off by chance e^-64.
_FARTHEST = 64.0


class DPSGDStrategy(StrategyWithDeadlines):
    """Any of Flower's strategies over clients that train by DP-SGD.

    Clients run :class:`~flower_ldp.clients.LdpMod` with :class:`~flower_ldp.clients.DPSGDRelease`,
    and :class:`~flower_ldp.clients.AccuracyRelease` to evaluate. The strategy gets only finite
    models like the one sent, and no client's number of examples.

    Parameters
    ----------
    strategy : Strategy
        Samples clients and aggregates their models.
    weights : mapping of int to float, optional
        Of clients by node id, positive; others are not asked. By default all are equal.
    accuracy_key : str
        The only metric that is read: a share from 0 to 1, with noise. Its mean is named ``noised-``
        and this.
    worst, best : float
        What the shares 0 and 1 stand for, if clients evaluate another score
        (:func:`~flower_ldp.training.private_accuracy`).
    examples : int, optional
        Rows or patients of a site, public; in [1, 10^12]. With it, and a plan in ``train_config``,
        the outlook is logged before the first round.

    Raises
    ------
    TypeError
        If the strategy is none, or needs losses or trees of clients.
    ValueError
        If a weight, or their sum, is not positive and finite.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = DPSGDStrategy(FedAvg(fraction_evaluate=0.0))
    """

    def __init__(
        self,
        strategy: Strategy,
        weights: Mapping[int, float] | None = None,
        *,
        accuracy_key: str = "accuracy",
        worst: float = 0.0,
        best: float = 1.0,
        examples: int | None = None,
    ) -> None:
        must_be("strategy", strategy, Strategy, "a strategy of Flower's, as FedAvg()")
        if isinstance(strategy, (QFedAvg, FedXgbBagging, FedXgbCyclic)):
            raise TypeError(
                f"{type(strategy).__name__} needs losses or trees of clients, and DP-SGD sends "
                "none: take FedAvg() or another that averages models"
            )
        for node, weight in (weights or {}).items():
            check_in("(0, inf)", f"the weight of node {node}", weight)
        if not math.isfinite(sum((weights or {}).values())):
            raise ValueError("the sum of weights is infinite: divide them all by the largest")
        if examples is not None:
            check_in("[1, 10^12]", "examples", examples, int)
        self.strategy, self.examples = strategy, examples
        self.weights = None if weights is None else dict(weights)
        if not 0 < abs(best - worst) < math.inf:
            raise ValueError(f"worst and best must be finite and differ, got {worst} and {best}")
        self.accuracy_key, self.worst, self.best = accuracy_key, worst, best
        self._weighted_by: str = getattr(strategy, "weighted_by_key", "num-examples")
        self._complaints = OnceLogger()
        self._sent: Mapping[str, NDArray[Any]] = {}
        self._asked: list[int] = []
        self._is_told = False

    def expect(self, rounds: int, arrays: ArrayRecord) -> None:
        """Begin a run."""
        self._complaints = OnceLogger()
        self._is_told = False

    def summary(self) -> None:
        """Log weights and the wrapped strategy's summary."""
        _log.info("\t├──> DP-SGD, clients weighed by: %s", self.weights or "one each")
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages."""
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        messages = self._weighed(self.strategy.configure_train(server_round, arrays, config, grid))
        if not self._is_told:
            self._is_told = True
            self._log_forecast(config, len(messages))
        return messages

    def _log_forecast(self, config: ConfigRecord, sites: int) -> None:
        plan = read_plan(config)
        if plan is None:
            _log.info("epsilon of the run: by the plan in each site's policy")
            return
        spent = PrivacySpent(Unit.EXAMPLE, plan.epsilon, plan.delta)
        _log.info("epsilon of the run: %s, for all rounds. %s", spent, meaning(spent))
        if self.examples is None or not sites:
            return
        outlook = TrainingOutlook(plan, self.examples, sites, outputs(self._sent))
        level = logging.INFO if outlook.verdict is Verdict.GOOD else logging.WARNING
        _log.log(level, "outlook: %s", outlook.judgement())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the valid models as the wrapped strategy does.

        The metrics are the wrapped strategy's, and ``accepted``, ``rejected`` and
        ``rejected-<reason>``. RunStopped if further rounds would be useless.
        """
        good, counts = self._good(server_round, replies, self._trained)
        arrays, found = self.strategy.aggregate_train(server_round, good) if good else (None, None)
        return arrays, MetricRecord({**(found or {}), **counts})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages."""
        return self._weighed(self.strategy.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the shares of right predictions, as the metric ``noised-accuracy``."""
        if not self._asked:
            return None
        good, counts = self._good(server_round, replies, self._counted)
        found = self.strategy.aggregate_evaluate(server_round, good) if good else None
        noised = {f"noised-{name}": value for name, value in (found or {}).items()}
        return MetricRecord({**noised, **counts})

    def _weighed(self, messages: Iterable[Message]) -> list[Message]:
        known = self.weights
        kept = [one for one in messages if known is None or one.metadata.dst_node_id in known]
        self._asked = [one.metadata.dst_node_id for one in kept]
        return kept

    def _good(
        self,
        server_round: int,
        replies: Iterable[Message],
        read: Callable[[RecordDict], RecordDict],
    ) -> tuple[list[Message], Metrics]:
        judge = ReplyValidator(self._asked, self._complaints)

        def weighed(reply: Message) -> Message:
            content = read(reply.content)
            weight = 1.0 if self.weights is None else self.weights[reply.metadata.src_node_id]
            content.metric_records["metrics"][self._weighted_by] = float(weight)
            reply.content = content
            return reply

        good = list(judge.read(replies, weighed))
        raise_if_unproductive(judge, server_round)
        return good, judge.metrics()

    def _trained(self, content: RecordDict) -> RecordDict:
        records = list(content.array_records.values())
        if len(records) != 1 or set(records[0]) != set(self._sent):
            raise WireError("model", "not one ArrayRecord with the arrays that were sent")
        (record,) = records
        for name, sent in self._sent.items():
            if not _is_like(record[name], sent):
                wanted = f"{sent.dtype}{sent.shape}, finite, and as sent where it is no float"
                raise WireError("model", f"{quoted(name)} is not {wanted}")
        arrays = ArrayRecord({name: record[name] for name in self._sent})
        return RecordDict({"arrays": arrays, "metrics": MetricRecord()})

    def _counted(self, content: RecordDict) -> RecordDict:
        records = list(content.metric_records.values())
        share = records[0].get(self.accuracy_key) if len(records) == 1 else None
        if not isinstance(share, int | float) or not -_FARTHEST <= share <= 1 + _FARTHEST:
            raise WireError("metric", f"{self.accuracy_key} is no share, got {quoted(share)}")
        score = self.worst + float(share) * (self.best - self.worst)
        return RecordDict({"metrics": MetricRecord({self.accuracy_key: score})})


def _is_like(array: Array, sent: NDArray[Any]) -> bool:
    if len(array.data) > sent.nbytes + _MOST_HEADER:
        return False
    try:
        found: object = array.numpy()
    except Exception:  # by no type of its own: of archives, headers, memory, pickles
        return False
    if not isinstance(found, np.ndarray) or (found.dtype, found.shape) != (sent.dtype, sent.shape):
        return False
    is_float = sent.dtype.kind == "f"
    return bool(np.isfinite(found).all()) if is_float else np.array_equal(found, sent)
