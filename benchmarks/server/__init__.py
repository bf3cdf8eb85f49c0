"""The server beside what it could at best be: a route that does nothing, the engine alone, a bare broadcast."""
