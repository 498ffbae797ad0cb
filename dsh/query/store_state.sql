-- The database itself.
-- → store_id, schema_version, sessions, search_indexed, last_event, generation
SELECT store_id, schema_version, sessions, search_indexed, last_event, generation FROM store
