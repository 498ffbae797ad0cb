-- Where a step's request was made, and under which header: the last one logged before the step ended.
-- session: id; turn, step: numbers
-- → start_seq (of step/start), header (JSON; NULL if none was logged)
SELECT s.start_seq, (SELECT h.header FROM request_header h
  WHERE h.session_id = :session AND h.seq < coalesce(s.end_seq, 9223372036854775807) ORDER BY h.seq DESC LIMIT 1)
FROM step s WHERE s.session_id = :session AND s.turn = :turn AND s.step = :step
