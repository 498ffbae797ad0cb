-- Rows that refer to a row that is not there.
-- → table, rowid (NULL for a table without), table referred to, number of the reference
PRAGMA foreign_key_check
