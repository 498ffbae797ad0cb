-- SQLite's quick check of the file's structure.
-- → complaint, or the one row 'ok'
PRAGMA quick_check(20)
