"""The durable privacy ledger, a file that the data owner keeps.

``ledger`` is its face, one open file. Beneath it, in the order of the data: ``charges`` (charges,
limits, receipts, the ledger's time), ``file`` (its tables, who may write it), ``rows`` (digests and
the chain), ``sums`` (what was spent), ``entries`` (and the long check), ``limits`` (and plans);
``anchor`` keeps its end elsewhere.
"""

from flower_ldp.accounting.ledger.charges import Charge, Entry, Limit, Mark, NumberLimit, Receipt
from flower_ldp.accounting.ledger.ledger import Ledger
from flower_ldp.refusals import REFUSED_REPEAT

__all__ = ["REFUSED_REPEAT", "Charge", "Entry", "Ledger", "Limit", "Mark", "NumberLimit", "Receipt"]
