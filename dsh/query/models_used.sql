-- The models of the newest sessions, each once.
-- sessions: how many
-- → model
SELECT DISTINCT m.model
FROM (SELECT id FROM session ORDER BY updated_at DESC, id DESC LIMIT :sessions) w
CROSS JOIN summary m ON m.session_id = w.id WHERE m.model IS NOT NULL
