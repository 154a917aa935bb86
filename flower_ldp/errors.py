"""The package's own exceptions.

Everything here may carry private detail in its text, because it is raised on
the client: :class:`~flower_ldp.clients.LdpMod` logs the text locally and lets
only a constant code leave.
"""

from __future__ import annotations


class LdpError(Exception):
    """Base of the errors that this package defines."""


class ConfigError(LdpError, ValueError):
    """A configuration file or value is wrong; the text names file, line and field."""


class RefusalError(LdpError):
    """The client declines to answer, for a reason that depends on public state alone.

    Parameters
    ----------
    code : str
        Constant that travels to the server, for example ``"ldp:refused:policy"``.
    detail : str
        Explanation for the client's own log; never sent.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class BudgetExhausted(RefusalError):  # noqa: N818  # a decision, not a fault
    """The release would cost more than a limit of the data owner's leaves.

    Parameters
    ----------
    detail : str
        What was spent, asked and allowed; for the client's own log.
    """

    CODE = "ldp:refused:budget"

    def __init__(self, detail: str) -> None:
        super().__init__(self.CODE, detail)


class LedgerError(LdpError):
    """The privacy ledger cannot be used; the text names the file and what to do.

    Nothing was released, and nothing may be until it is put right.
    """


class ReleaseError(LdpError):
    """A reply could not be privatized: the app failed, or data are not those paid for."""


class WireError(LdpError, ValueError):
    """Bytes or records from the other side are not a well-formed message.

    Parameters
    ----------
    reason : str
        Short constant slug, such as ``"length"``; rejected replies are counted by it.
    detail : str
        Explanation for the log.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
