-- Certain events of a session, in the order of their seqs as given.
-- session: id; seqs: JSON array
-- → seq, type, time, data (JSON), source_event_seqs (JSON or NULL), surface_op (JSON or NULL)
SELECT e.seq, e.type, e.time, e.data, e.source_event_seqs, e.surface_op
FROM json_each(:seqs) j CROSS JOIN event e ON e.session_id = :session AND e.seq = j.value ORDER BY j.key
