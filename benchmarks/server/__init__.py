"""The server, compared with a route that does nothing, the engine without a server, and a bare broadcast."""
