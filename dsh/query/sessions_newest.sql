-- The newest sessions to choose from: pinned ones first, then by last activity. Hidden ones and those of subagents are
-- left out.
-- session: the only one to list, or NULL; cwd: absolute path of a folder that they are of, or NULL; exact: 0 for folders
--   below it too; since, until: epoch ms of the last activity, or NULL; limit: rows
-- → id, title (NULL without one), cwd, updated_at
SELECT s.id, t.title, s.cwd, s.updated_at
FROM (SELECT id AS wanted FROM session
      WHERE hidden IS NULL AND delegation_depth = 0 AND (:session IS NULL OR id = :session)
        AND (:cwd IS NULL OR cwd = :cwd
          OR (NOT :exact AND substr(cwd, 1, length(rtrim(:cwd, '/')) + 1) = rtrim(:cwd, '/') || '/'))
        AND (:since IS NULL OR updated_at >= :since) AND (:until IS NULL OR updated_at <= :until)
      ORDER BY pinned IS NULL, updated_at DESC, id DESC LIMIT :limit) w
CROSS JOIN session s ON s.id = w.wanted CROSS JOIN title t ON t.session_id = s.id
ORDER BY s.pinned IS NULL, s.updated_at DESC, s.id DESC
