-- Hidden sessions of which no search shows anything, since no fork that is not hidden shares their events.
-- limit: rows, the newest sessions first
-- → id
SELECT s.id FROM session s WHERE s.hidden IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM lineage l JOIN session f ON f.id = l.session_id WHERE l.owner_id = s.id AND f.hidden IS NULL)
ORDER BY s.updated_at DESC LIMIT :limit
