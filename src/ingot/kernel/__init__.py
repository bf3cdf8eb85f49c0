"""What every room stands on: ids, time, errors, pages and loops. No driver, no framework."""
