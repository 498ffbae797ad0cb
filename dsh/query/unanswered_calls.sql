-- Tool calls of the open step that have no result, in the order the model made them (PE-35).
-- session: id; turn, step: numbers of the open step
-- → call_id, call_seq (NULL if the call was not logged as started)
SELECT b.value ->> 'id', c.seq
FROM step s
JOIN event m ON m.session_id = s.session_id AND m.seq > s.start_seq AND m.type = 'assistant/message'
JOIN json_each(m.data, '$.content') b ON b.value ->> 'type' = 'tool-call'
LEFT JOIN tool_call c ON c.session_id = s.session_id AND c.turn = s.turn AND c.step = s.step
  AND c.call_id = b.value ->> 'id'
WHERE s.session_id = :session AND s.turn = :turn AND s.step = :step
  AND NOT EXISTS (SELECT 1 FROM event r WHERE r.session_id = s.session_id AND r.seq > m.seq AND r.type = 'tool/result'
                  AND r.data ->> 'callId' = b.value ->> 'id')
ORDER BY m.seq, b.key
