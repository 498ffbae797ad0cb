-- The nodes the model sees, by seq, in surface order.
-- session: id
-- → seq
SELECT seq FROM surface WHERE session_id = :session ORDER BY position
