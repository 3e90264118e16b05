"""THE COUNTER: HTTP in the words of OpenAI's video API.

Knows FastAPI and the job service. Must not know: sessions, databases, where anything is kept.
"""
