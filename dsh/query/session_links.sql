-- All sessions with what makes a tree of them.
-- cwd: absolute path or NULL; hidden: 1 to show hidden ones too
-- → id, parent (NULL without one), created_at, updated_at, pinned (epoch ms or NULL), shown (1 if it is to be listed)
SELECT id, parent_session, created_at, updated_at, pinned, (:cwd IS NULL OR cwd = :cwd) AND (:hidden OR hidden IS NULL)
FROM session ORDER BY created_at, id
