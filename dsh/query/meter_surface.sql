-- The nodes the model sees, in surface order, with what they hold.
-- session: id
-- → seq, type, data (JSON)
SELECT seq, type, data FROM surface WHERE session_id = :session ORDER BY position
