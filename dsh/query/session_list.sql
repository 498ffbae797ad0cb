-- Sessions, newest first, for people.
-- cwd: absolute path or NULL; parent: id or NULL; limit: rows
-- → id, title, cwd, turns, length, created_at, updated_at, outcome (of the last turn, NULL while one is open), parent,
--   model, holder_pid
SELECT s.id, t.title, s.cwd, s.turns, s.length, s.created_at, s.updated_at,
  (SELECT n.outcome FROM turn n WHERE n.session_id = s.id ORDER BY n.start_seq DESC LIMIT 1),
  s.parent_session,
  (SELECT h.header ->> '$.config.model' FROM request_header h WHERE h.session_id = s.id ORDER BY h.seq DESC LIMIT 1),
  (SELECT l.pid FROM lease l WHERE l.session_id = s.id)
FROM session s JOIN title t ON t.session_id = s.id
WHERE (:cwd IS NULL OR s.cwd = :cwd) AND (:parent IS NULL OR s.parent_session = :parent)
ORDER BY s.updated_at DESC, s.id DESC LIMIT :limit
