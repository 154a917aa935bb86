"""Counts of many sites: one question by ``query``, and the tables that come of the noisy answers.

The class is no strategy of Flower's, which train: an app's server asks by it over a Grid.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flower_ldp.mechanisms.random import Ints
from flower_ldp.privacy import Unit, compose, meaning
from flower_ldp.strategies.count_tables import CountTable, agreeing, fitted_to_blocks
from flower_ldp.strategies.replies import (
    OnceLogger,
    ReplyValidator,
    RunStopped,
    raise_if_unproductive,
)
from flower_ldp.wire.counts import CountsProposal, Levels, Names
from flower_ldp.wire.proposal import PROPOSAL_KEY

_log = logging.getLogger("flwr")


class CountTables(Mapping[Names, CountTable]):
    """The tables of one question, by the names of their columns.

    Parameters
    ----------
    tables : mapping of tuple of str to CountTable
        In the question's order.
    sites, examples : int
        Sites that answered, and their examples together.
    """

    def __init__(self, tables: Mapping[Names, CountTable], sites: int, examples: int) -> None:
        self.sites, self.examples = sites, examples
        self._tables = dict(tables)

    def __getitem__(self, names: str | Names) -> CountTable:
        """Return the table of one column or of several, named as in the question."""
        return self._tables[(names,) if isinstance(names, str) else tuple(names)]

    def __iter__(self) -> Iterator[Names]:
        """Return the names of all tables."""
        return iter(self._tables)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)


class CountsQuery:
    """A question for tables of counts, to sites with :class:`~flower_ldp.clients.CountsRelease`.

    All tables are one release of each site, at one epsilon per row or patient.

    Parameters
    ----------
    columns : mapping of str to sequence
        **Public** levels of each column: ascending edges of intervals, or categories as text.
    tables : sequence of str or of sequence of str, optional
        Columns of each table; by default a table of each column. Fewer tables have less noise, and
        margins of a table cost nothing: ask for ``("age", "sex")`` alone rather than for all three.
    epsilon : float
        Per example, for all tables together; in [1e-6, 1000].
    delta : float
        The most that normal noise may cost; in [0, 0.5]. It is used where its noise is less.

    unit : {"example", "client"}
        ``"client"`` asks clients with one row each, such as phones, for one table of at most 62
        cells, by subset selection: each answers at epsilon per client.
    quantiles : sequence of str
        Columns of edges whose quantiles matter more than their counts. Each has a table of its own,
        and from 100 intervals on a second one of blocks of intervals: counts have the noise of a
        table more, and quantiles less.

    Raises
    ------
    ValueError
        For levels, tables or numbers that are not as stated.

    Examples
    --------
    >>> query = CountsQuery({"age": [0, 40, 60, 120], "sex": ["F", "M"]}, epsilon=1.0)
    >>> round(query.deviation, 2)
    5.66
    """

    def __init__(
        self,
        columns: Mapping[str, Levels],
        tables: Sequence[str | Sequence[str]] | None = None,
        *,
        epsilon: float,
        delta: float = 0.0,
        unit: Unit = Unit.EXAMPLE,
        quantiles: Sequence[str] = (),
    ) -> None:
        plain = {name: np.asarray(one).tolist() for name, one in columns.items()}
        asked = columns if tables is None else tables
        named = [(one,) if isinstance(one, str) else tuple(one) for one in asked]
        named += [(one,) for one in quantiles if (one,) not in named]
        self.proposal = CountsProposal(plain, named, epsilon, delta, Unit(unit), quantiles)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of one site's count, in examples."""
        return self.proposal.deviation(1)

    @cached_property
    def _complaints(self) -> OnceLogger:
        return OnceLogger()

    def content(self) -> RecordDict:
        """Return the content of a message that asks a site."""
        return RecordDict({PROPOSAL_KEY: ConfigRecord({**self.proposal.to_fields()})})

    def ask(
        self, grid: Grid, node_ids: Iterable[int] | None = None, timeout: float | None = None
    ) -> CountTables:
        """Ask sites, by default all that are connected, and return their tables.

        Raises
        ------
        RunStopped
            If no usable answer came, or sites answer with raw replies.
        """
        nodes = list(grid.get_node_ids() if node_ids is None else node_ids)
        spent = compose(self.proposal.events())[self.proposal.unit]
        _log.info("the question costs %s at each site. %s", spent, meaning(spent))
        messages = [
            Message(self.content(), dst_node_id=node, message_type=MessageType.QUERY)
            for node in nodes
        ]
        return self.aggregate(grid.send_and_receive(messages, timeout=timeout), nodes)

    def aggregate(
        self, replies: Iterable[Message], node_ids: Iterable[int] | None = None
    ) -> CountTables:
        """Return the tables of answers to :meth:`content`; RunStopped as of :meth:`ask`.

        ``node_ids`` are the sites asked; by default all whose replies came.
        """
        replies = list(replies)
        senders = (one.metadata.src_node_id for one in replies)
        judge = ReplyValidator(senders if node_ids is None else node_ids, self._complaints)
        reports = list(judge.decode(replies, self.proposal.decode))
        raise_if_unproductive(judge, 1)
        if not reports:
            raise RunStopped(f"no site gave counts: {judge.metrics()}")
        examples, total = sum(one for one, _ in reports), sum(counts for _, counts in reports)
        return self.tables(np.asarray(total), examples, len(reports))

    def tables(self, total: Ints, examples: int, sites: int) -> CountTables:
        """Return the tables of the sum of so many sites' reports."""
        noisy = self._divided(self.proposal.estimate(total, examples), examples)
        best = agreeing(noisy, examples)
        # Of a sum of Laplace noise; normal noise has none, and coins have hardly any.
        is_laplace = not (self.proposal.sets or self.proposal.mechanism.factor)
        excess, deviation = 3.0 * is_laplace / sites, self.proposal.deviation(sites)
        tables = {
            names: CountTable(
                {name: self.proposal.columns[name] for name in names},
                best[names],
                noisy[names],
                deviation,
                excess,
                self.proposal.blocks.get(names[0], ()) if len(names) == 1 else (),
            )
            for names in noisy
        }
        return CountTables(tables, sites, examples)

    def _divided(self, cells: np.ndarray, examples: int) -> dict[Names, np.ndarray]:
        asked, sizes = self.proposal, self.proposal.mechanism.cells
        parts = iter(np.split(cells, np.cumsum(sizes[:-1])))
        found = {names: next(parts).reshape(asked.shape(names)) for names in asked.tables}
        for name, starts in asked.blocks.items():
            found[name,] = fitted_to_blocks(found[name,], next(parts), starts, examples)
        return found
