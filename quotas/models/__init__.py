"""People and limits, a module a subject. Elsewhere one imports from here."""

from quotas.models.audit import AuditEntry, AuditLink, AuditSegment
from quotas.models.efficiency import JobUse
from quotas.models.ledger import LedgerEntry
from quotas.models.limits import Quota
from quotas.models.notices import Notice, NoticeChannel, NoticeDelivery
from quotas.models.people import IssuedAccount, Membership, Project, User, UserManager
from quotas.models.prices import PriceRow, StorageEntry
from quotas.models.requests import QuotaRequest, QuotaRequestEvent
from quotas.models.secrets import Secret
from quotas.models.tokens import ApiToken

__all__ = [
    "ApiToken",
    "AuditEntry",
    "AuditLink",
    "AuditSegment",
    "IssuedAccount",
    "JobUse",
    "LedgerEntry",
    "Membership",
    "Notice",
    "NoticeChannel",
    "NoticeDelivery",
    "PriceRow",
    "Project",
    "Quota",
    "QuotaRequest",
    "QuotaRequestEvent",
    "Secret",
    "StorageEntry",
    "User",
    "UserManager",
]
