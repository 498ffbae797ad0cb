-- Sessions whose header names no parent.
-- → id
SELECT id FROM session WHERE parent_session IS NULL
