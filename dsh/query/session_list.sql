-- Sessions for people: pinned ones first, then by last activity. The log is not read, however long it is: what is told
-- of it is found by a seek each.
-- cwd: absolute path or NULL; depth: deepest delegation to list; hidden: 1 to list hidden ones too; ids: JSON array of
--   the only ones to list, or NULL; limit: rows
-- → id, title, cwd, turns, length, created_at, updated_at, open_turn, outcome (of the last turn, NULL while one is
--   open), parent, model, pinned, hidden (epoch ms or NULL), seed_length, delegation_depth, forked (1 if it shares
--   events of others), titled (0 if the title is only how the first prompt begins), and the lease's pid, boot_id,
--   process_start, heartbeat (NULL without one)
SELECT s.id, m.title, s.cwd, s.turns, s.length, s.created_at, s.updated_at, s.open_turn,
  iif(s.open_turn IS NULL, m.outcome, NULL), s.parent_session, m.model, s.pinned, s.hidden, s.seed_length,
  s.delegation_depth, EXISTS (SELECT 1 FROM fork f WHERE f.id = s.id),
  EXISTS (SELECT 1 FROM session_title t WHERE t.session_id = s.id), l.pid, l.boot_id, l.process_start, l.heartbeat
FROM (SELECT id AS wanted FROM session
      WHERE (:cwd IS NULL OR cwd = :cwd) AND delegation_depth <= :depth AND (:hidden OR hidden IS NULL)
        AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
      ORDER BY pinned IS NULL, updated_at DESC, id DESC LIMIT :limit) w
CROSS JOIN session s ON s.id = w.wanted CROSS JOIN summary m ON m.session_id = s.id
LEFT JOIN lease l ON l.session_id = s.id
ORDER BY s.pinned IS NULL, s.updated_at DESC, s.id DESC
