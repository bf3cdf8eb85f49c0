"""HTTP: the route table, who calls, what errors look like, streams and limits."""
