-- What to read of a session's log around one event: where so many events that people read begin before it and end after
-- it. Steps, headers, chunks and the ends of turns do not count, nor do calls: they stand in their message, which is the
-- place where a call is read.
-- session: id; seq; before, after: how many
-- → low, high, place (seqs; place is NULL if nothing that people read comes as early)
SELECT
  coalesce((SELECT min(seq) FROM (SELECT seq FROM event WHERE session_id = :session AND seq < :seq AND type NOT IN
      ('assistant/chunk', 'step/start', 'step/end', 'request/header', 'tool/call', 'turn/start', 'turn/end')
    ORDER BY part DESC, seq DESC LIMIT :before)), :seq),
  coalesce((SELECT max(seq) FROM (SELECT seq FROM event WHERE session_id = :session AND seq > :seq AND type NOT IN
      ('assistant/chunk', 'step/start', 'step/end', 'request/header', 'tool/call', 'turn/start', 'turn/end')
    ORDER BY part, seq LIMIT :after)), :seq),
  (SELECT seq FROM event WHERE session_id = :session AND seq <= :seq AND type NOT IN
      ('assistant/chunk', 'step/start', 'step/end', 'request/header', 'tool/call', 'turn/start')
    AND (type = 'assistant/message' OR NOT EXISTS (
      SELECT 1 FROM event WHERE session_id = :session AND seq = :seq AND type = 'tool/call'))
   ORDER BY part DESC, seq DESC LIMIT 1)
