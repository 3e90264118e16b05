"""THE LEDGER: jobs that outlive the server. What a job is, where it is written down, and who runs it.

Knows the session, a database and a folder. Must not know: HTTP, pages, terminals; how a client spells a request.
"""
