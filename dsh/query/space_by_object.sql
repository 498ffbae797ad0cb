-- What takes the space in the file, biggest first; SQLite reads every page for it.
-- → name, kind (table or index), table (that it belongs to), bytes, bytes_unused (within its pages)
SELECT d.name, coalesce(s.type, 'table'), coalesce(s.tbl_name, d.name), d.pgsize, d.unused
FROM dbstat d LEFT JOIN sqlite_schema s ON s.name = d.name
WHERE d.aggregate = TRUE ORDER BY d.pgsize DESC, d.name
