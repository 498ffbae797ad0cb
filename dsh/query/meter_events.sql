-- What the token meter reads of a session's log from a seq on: headers, steps, and what joined the surface.
-- session: id; low: first seq
-- → seq, type, data (JSON), source_event_seqs (JSON or NULL), surface_op (JSON or NULL)
SELECT seq, type, data, source_event_seqs, surface_op FROM event
WHERE session_id = :session AND seq >= :low AND type <> 'assistant/chunk' AND type IN ('request/header', 'step/start',
  'step/end', 'user/message', 'steering/message', 'assistant/message', 'tool/result')
ORDER BY seq
