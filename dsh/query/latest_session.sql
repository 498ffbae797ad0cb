-- The session that opened or closed a turn or step last, to go on from: of one folder, or of any when cwd is NULL.
-- Hidden ones are not gone on with unless somebody names them.
-- cwd: absolute path or NULL
-- → id
SELECT id FROM session WHERE (:cwd IS NULL OR cwd = :cwd) AND delegation_depth = 0 AND hidden IS NULL
ORDER BY updated_at DESC, id DESC LIMIT 1
