-- One session's header and what the log's triggers keep about it.
-- session: id
-- → id, version, created_at, cwd, parent_session, seed_length, delegation_depth, incarnation, revision, length,
--   replace_generation, turns, steps, open_turn, open_step, updated_at
SELECT id, version, created_at, cwd, parent_session, seed_length, delegation_depth, incarnation, revision, length,
  replace_generation, turns, steps, open_turn, open_step, updated_at
FROM session WHERE id = :session
