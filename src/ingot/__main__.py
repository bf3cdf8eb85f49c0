"""`python -m ingot` is the command line."""

from ingot.cli import main

if __name__ == "__main__":
    main()
