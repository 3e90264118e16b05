"""THE LEDGER: jobs that outlive the server. What a job is, where it is written down, and who runs it.

Knows the session, a database and a folder. Must not know: HTTP, pages, terminals; how a client spells a request.
"""

from splitreel.serve.jobs.refusals import JobBusy, JobNotFound, KeyReused, NothingThere, NotReady, OverQuota
from splitreel.serve.jobs.service import JobService
from splitreel.serve.jobs.view import JobView, ServiceStats

__all__ = [
    "JobBusy",
    "JobNotFound",
    "JobService",
    "JobView",
    "KeyReused",
    "NotReady",
    "NothingThere",
    "OverQuota",
    "ServiceStats",
]
