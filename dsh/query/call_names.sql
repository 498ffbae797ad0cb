-- Which tools were called before an event in its turn: a result that follows it may be of one of them.
-- session: id; below: seq
-- → call_id, name
SELECT call_id, name FROM tool_call WHERE session_id = :session AND seq < :below AND seq >
  (SELECT seq FROM event WHERE session_id = :session AND type = 'turn/start' AND type <> 'assistant/chunk'
     AND seq <= :below
   ORDER BY part DESC, seq DESC LIMIT 1)
