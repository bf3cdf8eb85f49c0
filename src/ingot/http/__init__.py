"""HTTP: the ASGI application with its routes, authentication, error responses, streams and limits."""
