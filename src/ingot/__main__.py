"""Run the command line with `python -m ingot`."""

from ingot.cli import main

if __name__ == "__main__":
    main()
