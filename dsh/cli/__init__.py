"""The command line: one small module per command, loaded when it is named."""
