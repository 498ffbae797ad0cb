-- The database itself.
-- → store_id, schema_version, sessions, search_indexed, last_event
SELECT store_id, schema_version, sessions, search_indexed, last_event FROM store
