"""One module for each subcommand of `acpmbr`."""
