"""Jobs that a site or a user wants left alone: one predicate for submission and for ticks."""

from __future__ import annotations

from dataclasses import dataclass

WORD = "slurm-rl:off"  # in a job's --comment, if the site lets users opt out


@dataclass(frozen=True, slots=True)
class LeaveAlone:
    """What is left alone; empty: nothing."""

    partitions: frozenset[str] = frozenset()
    qos: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    by_comment: bool = False

    def __bool__(self) -> bool:
        return bool(self.partitions or self.qos or self.accounts or self.users or self.by_comment)

    def why(self, partition: str, qos: str, account: str, user: str, comment: str = "") -> str:
        """Why a job is left alone; "" if it is not.

        `partition` may be a list ("a,b"): one of them is enough. Names compare exactly, as Slurm compares them.
        A user's word counts wherever it stands in the comment, between spaces, commas or semicolons.
        """
        for name in partition.split(","):
            if name in self.partitions:
                return f"partition {name} is left alone (leave_alone_partitions)"
        if qos in self.qos:
            return f"QOS {qos} is left alone (leave_alone_qos)"
        if account in self.accounts:
            return f"account {account} is left alone (leave_alone_accounts)"
        if user in self.users:
            return f"user {user} is left alone (leave_alone_users)"
        if self.by_comment and WORD in comment.replace(",", " ").replace(";", " ").split():
            return f"its comment says {WORD}"
        return ""
