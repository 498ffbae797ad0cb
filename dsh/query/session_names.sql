-- Ids of the stored sessions, or of one if it is stored.
-- session: id or NULL for all
-- → id
SELECT id FROM session WHERE :session IS NULL OR id = :session ORDER BY id
