-- How far the search index has read, and how far the log goes.
-- → search_indexed, last_event (internal ids)
SELECT search_indexed, last_event FROM store
