"""`python -m evaluation.report RUN`."""

from evaluation.report.page import main

main()
