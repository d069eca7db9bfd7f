"""`acpmbr`: the command line, one module per subcommand."""
