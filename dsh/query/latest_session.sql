-- The session that opened or closed a turn or step last, to go on from: of one folder, or of any when cwd is NULL.
-- cwd: absolute path or NULL
-- → id
SELECT id FROM session WHERE (:cwd IS NULL OR cwd = :cwd) AND delegation_depth = 0
ORDER BY updated_at DESC, id DESC LIMIT 1
