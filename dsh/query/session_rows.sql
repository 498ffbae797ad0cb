-- Ids of the stored sessions, read from their table and not from the index of names, which may be the damaged one.
-- → id
SELECT id FROM session WHERE created_at IS NOT NULL
