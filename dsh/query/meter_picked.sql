-- Certain events of a session, in the order of their seqs as given.
-- session: id; seqs: JSON array
-- → seq, type, data (JSON)
SELECT e.seq, e.type, e.data FROM json_each(:seqs) j CROSS JOIN event e ON e.session_id = :session AND e.seq = j.value
ORDER BY j.key
