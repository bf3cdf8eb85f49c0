"""The routes of `/api/v1`, one module per subject. They convert between HTTP and the services of the rooms."""
