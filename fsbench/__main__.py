"""`python -m fsbench`."""

from fsbench.cli.main import main

if __name__ == "__main__":
    main()
