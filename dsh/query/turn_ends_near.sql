-- Where turns end next to a seq, to name the places where a session can be forked.
-- session: id; seq: event
-- → before, after (seqs, NULL if there is none)
SELECT
  (SELECT seq FROM event WHERE session_id = :session AND type = 'turn/end' AND type <> 'assistant/chunk' AND seq < :seq
   ORDER BY part DESC, seq DESC LIMIT 1),
  (SELECT seq FROM event WHERE session_id = :session AND type = 'turn/end' AND type <> 'assistant/chunk' AND seq > :seq
   ORDER BY part, seq LIMIT 1)
