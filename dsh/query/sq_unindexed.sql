-- How many documents of a session's log the index does not know yet.
-- session: id; indexed: the internal id up to which it has read
-- → documents
SELECT count(*) FROM lineage l JOIN search_event d ON d.session_id = l.owner_id AND d.seq <= l.last
WHERE l.session_id = :session AND d.id > :indexed
