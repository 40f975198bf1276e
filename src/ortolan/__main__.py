"""`python -m ortolan` runs the command line."""

from ortolan.cli import main

if __name__ == "__main__":
    main()
