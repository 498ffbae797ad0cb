"""Sessions over the log: appending, deriving messages, the header, forks, repair, and who drives what."""
