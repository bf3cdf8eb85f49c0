"""The routes, one file per room: from what a request says to what a room does, and back."""
