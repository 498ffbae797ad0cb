-- How many hits of an index expression are in each session that wrote them; `limit` are looked at, the newest.
-- match: expression; high: largest id; since, until: epoch ms or NULL; limit: hits
-- → session_id, hits
SELECT d.session_id, count(*)
FROM (SELECT rowid AS id FROM search WHERE search MATCH :match AND rowid <= :high ORDER BY rowid DESC LIMIT :limit) f
CROSS JOIN search_event d ON d.id = f.id
WHERE (:since IS NULL OR d.time >= :since) AND (:until IS NULL OR d.time <= :until)
GROUP BY d.session_id
