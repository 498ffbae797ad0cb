-- The messages the model sees, in surface order, of nodes appended from a seq on.
-- After plain growth (the same replace_generation) these are exactly the new ones; from seq 0 they are all.
-- session: id; seq: first seq
-- → seq, role, content (JSON), provenance (JSON or NULL)
SELECT seq, role, content, provenance FROM message WHERE session_id = :session AND seq >= :seq ORDER BY position
