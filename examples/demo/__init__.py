"""The demo: a server and two workers as processes, a few hundred jobs, and what becomes of them."""
