-- The sessions that show events of a session: itself, its forks, then theirs.
-- session: id
-- → id, depth (how many ancestors' events it shows)
SELECT l.session_id, (SELECT count(*) FROM lineage d WHERE d.session_id = l.session_id) - 1 AS depth
FROM lineage l WHERE l.owner_id = :session ORDER BY depth, l.session_id
