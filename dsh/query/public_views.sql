-- The views that anybody may query, and their columns in order.
-- → view, column
SELECT v.name, c.name FROM sqlite_schema v JOIN pragma_table_info(v.name) c
WHERE v.type = 'view' AND substr(v.name, 1, 1) <> '_' ORDER BY v.rowid, c.cid
