-- What the model saw before an event: the surface as of then, in its order (SE-33).
-- session: id; before: seq
-- → seq, type, time, data (JSON), source_event_seqs, surface_op (both NULL: they say nothing here)
SELECT e.seq, e.type, e.time, e.data, NULL, NULL
FROM surface_history h JOIN event e ON e.session_id = h.session_id AND e.seq = h.seq
WHERE h.session_id = :session AND h.seq < :before AND (h.replaced_by IS NULL OR h.replaced_by >= :before)
ORDER BY h.position
