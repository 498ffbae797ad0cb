-- How far the search index has read, and how far the log goes.
-- → search_indexed, last_event (internal ids), index_version (of the functions that made it)
SELECT search_indexed, last_event, index_version FROM store
