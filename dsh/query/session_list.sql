-- Sessions, newest first, for people.
-- cwd: absolute path or NULL; depth: deepest delegation to list; limit: rows
-- → id, title, cwd, turns, length, created_at, updated_at, open_turn, outcome (of the last turn, NULL while one is
--   open), parent, model, and the lease's pid, boot_id, process_start, heartbeat (NULL without one)
SELECT s.id, (SELECT t.title FROM title t WHERE t.session_id = s.id), s.cwd, s.turns, s.length, s.created_at,
  s.updated_at, s.open_turn,
  (SELECT e.data ->> '$.reason.kind' FROM event e WHERE e.session_id = s.id AND e.type = 'turn/end'
     AND e.type <> 'assistant/chunk' AND s.open_turn IS NULL ORDER BY e.seq DESC LIMIT 1),
  s.parent_session,
  (SELECT h.header ->> '$.config.model' FROM request_header h WHERE h.session_id = s.id ORDER BY h.seq DESC LIMIT 1),
  l.pid, l.boot_id, l.process_start, l.heartbeat
FROM (SELECT * FROM session WHERE (:cwd IS NULL OR cwd = :cwd) AND delegation_depth <= :depth
      ORDER BY updated_at DESC, id DESC LIMIT :limit) s
LEFT JOIN lease l ON l.session_id = s.id
ORDER BY s.updated_at DESC, s.id DESC
