"""The durable privacy ledger, a file that the data owner keeps (docs/ledger.md).

``ledger`` is one open file. Beneath it: ``charges`` (charges, limits, receipts, time), ``file``
(tables, rights), ``rows`` (digests, the chain), ``sums`` (spending), ``entries`` (and the whole
check), ``limits`` (and plans), ``anchor``.
"""

from flower_ldp.accounting.ledger.charges import Charge, Entry, Limit, Mark, NumberLimit, Receipt
from flower_ldp.accounting.ledger.ledger import Ledger
from flower_ldp.refusals import REFUSED_REPEAT

__all__ = ["REFUSED_REPEAT", "Charge", "Entry", "Ledger", "Limit", "Mark", "NumberLimit", "Receipt"]
