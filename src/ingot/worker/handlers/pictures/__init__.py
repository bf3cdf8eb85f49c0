"""Pictures, as the handler `image` reads, draws and writes them."""
