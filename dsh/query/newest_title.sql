-- The newest title event of a session.
-- session: id
-- → title, source (JSON), seq, time (epoch ms), messageSeqs (JSON, or NULL)
SELECT t.title, t.source, t.event_seq, t.updated_at,
  (SELECT e.data -> 'messageSeqs' FROM event e WHERE e.session_id = :session AND e.seq = t.event_seq)
FROM session_title t WHERE t.session_id = :session
