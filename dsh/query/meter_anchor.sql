-- The last assistant message of a session, the start of its step, and the header that was in force for it.
-- session: id
-- → seq, data (JSON), source_event_seqs (JSON or NULL), step_start (seq), header (JSON or NULL)
SELECT m.seq, m.data, m.source_event_seqs,
  (SELECT b.seq FROM event b WHERE b.session_id = :session AND b.type = 'step/start' AND b.type <> 'assistant/chunk'
     AND b.seq < m.seq ORDER BY b.part DESC, b.seq DESC LIMIT 1),
  (SELECT h.data -> 'header' FROM event h WHERE h.session_id = :session AND h.type = 'request/header'
     AND h.type <> 'assistant/chunk' AND h.seq < m.seq ORDER BY h.part DESC, h.seq DESC LIMIT 1)
FROM event m WHERE m.session_id = :session AND m.type = 'assistant/message' AND m.type <> 'assistant/chunk'
ORDER BY m.part DESC, m.seq DESC LIMIT 1
