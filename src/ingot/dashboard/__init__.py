"""HTML pages: signing in and out, and the account of the signed-in person."""
