-- Every stored session's header, and what names the state of its log (PE-40, PE-45), oldest first.
-- → id, version, created_at, cwd, parent_session, seed_length, delegation_depth, incarnation, revision
SELECT id, version, created_at, cwd, parent_session, seed_length, delegation_depth, incarnation, revision
FROM session ORDER BY created_at, id
