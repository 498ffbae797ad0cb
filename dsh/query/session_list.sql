-- Sessions, newest first, for people. The newest are chosen first, then their details are looked up.
-- cwd: absolute path or NULL; parent: id or NULL; limit: rows
-- → id, title, cwd, turns, length, created_at, updated_at, outcome (of the last turn, NULL while one is open), parent,
--   model, holder_pid
SELECT s.id, (SELECT t.title FROM title t WHERE t.session_id = s.id), s.cwd, s.turns, s.length, s.created_at, s.updated_at,
  (SELECT n.outcome FROM turn n WHERE n.session_id = s.id ORDER BY n.start_seq DESC LIMIT 1),
  s.parent_session,
  (SELECT h.header ->> '$.config.model' FROM request_header h WHERE h.session_id = s.id ORDER BY h.seq DESC LIMIT 1),
  (SELECT l.pid FROM lease l WHERE l.session_id = s.id)
FROM (SELECT * FROM session WHERE (:cwd IS NULL OR cwd = :cwd) AND (:parent IS NULL OR parent_session = :parent)
      ORDER BY updated_at DESC, id DESC LIMIT :limit) s
ORDER BY s.updated_at DESC, s.id DESC
