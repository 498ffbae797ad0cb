-- The views that anybody may query, with their columns in order and the type that SQLite knows of each ('' if none).
-- → view, column, type
SELECT v.name, c.name, c.type FROM sqlite_schema v JOIN pragma_table_info(v.name) c
WHERE v.type = 'view' AND substr(v.name, 1, 1) <> '_' ORDER BY v.rowid, c.cid
