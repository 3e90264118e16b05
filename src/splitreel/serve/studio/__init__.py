"""THE STUDIO: a page on the job service, in the same process as the HTTP API.

Knows the job service and Gradio. Must not know: sessions' insides, databases, how the API spells a request.
"""
