-- Whose events each session's log is made of.
-- session: id of the only one asked about, or NULL
-- → session_id, owner_id, last (highest seq that counts), cwd (of the owner)
SELECT l.session_id, l.owner_id, l.last, o.cwd
FROM lineage l JOIN session o ON o.id = l.owner_id WHERE :session IS NULL OR l.session_id = :session
