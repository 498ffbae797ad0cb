-- Every stored session's header, without a look at its log.
-- → id, version, created_at, cwd, parent_session, seed_length, delegation_depth, hidden (epoch ms or NULL)
SELECT id, version, created_at, cwd, parent_session, seed_length, delegation_depth, hidden FROM session
