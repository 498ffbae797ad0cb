-- The last turn that a message has begun (SE-48), whether it is over or not; turns of injections and plugins are no
-- answer to anybody.
-- session: id; below: the seq it began before
-- → turn, start_seq, end_seq, started_at, ended_at (epoch ms), reason (JSON) (the three NULL while it is open),
--   limit (of steps, if the turn hit it, else NULL)
-- The unary plus keeps the bound from choosing the index that has the chunks, too.
SELECT t.turn, t.start_seq, t.end_seq, t.started_at, t.ended_at, t.reason,
  (SELECT e.data ->> 'limit' FROM event e WHERE e.session_id = :session AND e.type = 'turn/limit'
     AND e.type <> 'assistant/chunk' AND coalesce(e.data ->> 'kind', 'steps') = 'steps' AND e.seq > t.start_seq
   ORDER BY e.seq LIMIT 1)
FROM turn t WHERE t.session_id = :session AND t.start_seq =
  (SELECT seq FROM event WHERE session_id = :session AND type = 'turn/start' AND type <> 'assistant/chunk'
     AND data ->> '$.trigger.kind' = 'message' AND +seq < :below ORDER BY part DESC, seq DESC LIMIT 1)
