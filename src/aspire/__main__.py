"""`python -m aspire` is the command line."""

from aspire.cli import main

main()
